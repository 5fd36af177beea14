"""Compiles all kernels without a GPU, and prints their properties as JSON.

    TRITON_INTERPRET=0 python -m tests.engine.worker.cuda.compile_kernels [CAPABILITY]

The capability is 80 (A100), 89 (L4, RTX 4090) or 90 (H100, H200; the default, with fewer cases). Calls the real launch
functions and replaces only the launch itself.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, get_args

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.cuda import quantized, rotary, rows, sampling
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from glimpse.engine.worker.layers.mlp import Activation
from glimpse.engine.worker.layers.rotary import Rotation
from tests.engine.worker.cuda.draws import draw_params
from tests.engine.worker.cuda.steps import attend, make_cache, make_step

COMPILED: list[dict[str, Any]] = []
DTYPE = torch.bfloat16


class Driver:
    """The driver methods that Triton calls before a launch."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> GPUTarget:
        return self._target


def compile_only(kernel: Any, grid: Any) -> Callable[..., None]:
    def run(*arguments: Any, **options: Any) -> None:
        compiled = kernel.warmup(*arguments, grid=grid, **options)
        instructions = [name for name in ("wgmma", "mma.sync") if name in compiled.asm["ptx"]]
        registers, stack_bytes = registers_and_stack(compiled.asm["cubin"])
        COMPILED.append(
            {
                "name": kernel.fn.__name__,
                "shared_bytes": compiled.metadata.shared,
                "registers": registers,
                "stack_bytes": stack_bytes,
                "products": instructions,
            }
        )

    return run


def registers_and_stack(binary: bytes) -> tuple[int, int]:
    """Returns the registers of a thread, and the bytes that it keeps in memory because registers do not suffice."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return int(found[1]), int(found[2])


def main() -> None:
    capability = int(sys.argv[1]) if len(sys.argv) > 1 else 90
    triton.runtime.driver.set_active(Driver(capability))  # pyright: ignore
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
    for head_dim in (256,) if len(sys.argv) == 1 else (64, 256):  # float32 takes the most memory and registers
        attend(
            make_step(
                [(1, 40), (9, 20)],
                head_dim=head_dim,
                num_kv_heads=2,
                num_queries_per_kv=4,
                block_size=32,
                dtype=torch.float32,
            )
        )
    rotary.rotate(torch.empty(3, 48, 80, dtype=DTYPE), Rotation(*torch.empty(2, 3, 1, 40)), num_heads=32)
    rows.gated_silu(torch.empty(3, 2 * 8960, dtype=DTYPE))
    for activation in get_args(Activation):
        rows.activate(torch.empty(3, 5120, dtype=DTYPE), activation)
    for linear in (
        Int8Linear(plain := Linear(1536, 2048, bias=True).to(DTYPE)),
        *(GroupQuantizedLinear(plain, bits=bits, group_size=128, scale_dtype=DTYPE) for bits in (4, 8)),
        GroupQuantizedLinear(plain, bits=8, group_size=16, scale_dtype=torch.float32, has_minimum=True),
    ):
        quantized.multiply(torch.empty(3, 1536, dtype=DTYPE), linear, None)
        if isinstance(linear, GroupQuantizedLinear):
            quantized.dequantize(linear, DTYPE)
    if len(sys.argv) > 1:
        quantized.multiply(torch.empty(quantized.FEW_ROWS, 1536), Int8Linear(Linear(1536, 2048, bias=True)), None)
    sampling.draw_tokens(
        torch.empty(1, 151_936), draw_params([SamplingParams()], [0.5]), torch.empty(1, dtype=torch.int64)
    )
    print(json.dumps(COMPILED))


if __name__ == "__main__":
    main()
