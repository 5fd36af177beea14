"""Compiles all kernels for an H100 or H200 without a GPU, and prints their properties as JSON.

Calls the real launch functions and replaces only the launch itself. Must run with TRITON_INTERPRET=0.
"""

import json
from collections.abc import Callable
from typing import Any, get_args

import torch
import triton
from triton.backends.compiler import GPUTarget

from glimpse.engine.cuda import quantized, rotary, rows, sampling
from glimpse.engine.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.layers.linear import Int8Linear, Linear
from glimpse.engine.layers.mlp import Activation
from glimpse.engine.layers.rotary import Rotation
from glimpse.engine.sampling_params import SamplingParams
from tests.engine.cuda.draws import draw_params
from tests.engine.cuda.steps import attend, make_cache, make_step

COMPILED: list[dict[str, Any]] = []
DTYPE = torch.bfloat16


class Hopper:
    """The driver methods that Triton calls before a launch."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def compile_only(kernel: Any, grid: Any) -> Callable[..., None]:
    def run(*arguments: Any, **options: Any) -> None:
        compiled = kernel.warmup(*arguments, grid=grid, **options)
        instructions = [name for name in ("wgmma", "mma.sync") if name in compiled.asm["ptx"]]
        COMPILED.append(
            {"name": kernel.fn.__name__, "shared_bytes": compiled.metadata.shared, "products": instructions}
        )

    return run


def main() -> None:
    triton.runtime.driver.set_active(Hopper())  # pyright: ignore
    triton.runtime.JITFunction.__getitem__ = compile_only  # pyright: ignore
    for num_kv_heads, num_queries_per_kv in ((2, 6), (4, 7)):  # Qwen2-VL 2B and 7B
        num_heads = num_kv_heads * num_queries_per_kv
        step = make_step(
            [(1, 40), (9, 20)],
            head_dim=128,
            num_kv_heads=num_kv_heads,
            num_queries_per_kv=num_queries_per_kv,
            block_size=32,
            dtype=DTYPE,
        )
        attend(step)
        qkv = torch.empty(3, (num_heads + 2 * num_kv_heads) * 128, dtype=DTYPE)
        cache = make_cache(4, 32, num_kv_heads, 128, DTYPE)
        rotary.rotate_and_store(qkv, Rotation(*torch.empty(2, 3, 1, 64)), cache, torch.arange(3))
        rows.rms_norm(torch.empty(3, num_heads * 128, dtype=DTYPE), torch.empty(num_heads * 128, dtype=DTYPE), 1e-6)
    rotary.rotate(torch.empty(3, 48, 80, dtype=DTYPE), Rotation(*torch.empty(2, 3, 1, 40)), num_heads=32)
    rows.gated_silu(torch.empty(3, 2 * 8960, dtype=DTYPE))
    for activation in get_args(Activation):
        rows.activate(torch.empty(3, 5120, dtype=DTYPE), activation)
    for linear in (
        Int8Linear(plain := Linear(1536, 2048, bias=True).to(DTYPE)),
        *(GroupQuantizedLinear(plain, bits=bits, group_size=128, scale_dtype=DTYPE) for bits in (4, 8)),
    ):
        quantized.multiply(torch.empty(3, 1536, dtype=DTYPE), linear, None)
        if isinstance(linear, GroupQuantizedLinear):
            quantized.dequantize(linear, DTYPE)
    sampling.draw_tokens(
        torch.empty(1, 151_936), draw_params([SamplingParams()], [0.5]), torch.empty(1, dtype=torch.int64)
    )
    print(json.dumps(COMPILED))


if __name__ == "__main__":
    main()
