"""Creates the CUDA backends, or reports why they are unavailable.

Triton and FlashInfer are optional dependencies, so they are imported only when used.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch

from glimpse.engine.core.plan import SequenceChunk
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.tensors.batch import SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.draws import DrawParams, DrawTokens
from glimpse.engine.worker.tensors.kv_cache import CacheShape

CudaBackend = Literal["triton", "flashinfer"]

FLASHINFER_HEAD_DIMS = (64, 128, 256)
"""Head sizes that FlashInfer has kernels for."""


def why_not_triton(device: torch.device) -> str | None:
    """Returns why the Triton backend cannot run on this device, or None if it can."""
    if device.type != "cuda":
        return "it requires a CUDA device"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    return kernel_error(
        lambda: import_module("glimpse.engine.worker.cuda.rows").gated_silu(torch.zeros(1, 2, device=device))
    )


def why_not_flashinfer(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Returns why the FlashInfer backend cannot run with this dtype and head size, or None if it can."""
    if reason := why_not_triton(device):
        return reason  # Triton computes everything except attention
    if find_spec("flashinfer") is None:
        return 'FlashInfer is not installed: pip install "glimpse[flashinfer]"'
    if dtype is torch.float32:
        return "it does not support float32"
    if head_dim not in FLASHINFER_HEAD_DIMS:
        return f"it has no kernels for head_dim {head_dim}"
    return kernel_error(lambda: _attend_once(device, dtype, head_dim))


def why_not_draw_tokens(device: torch.device) -> str | None:
    """Returns why the kernels that draw tokens cannot run on this device, or None if they can. Draws from a row."""
    params = DrawParams(
        rows=torch.zeros(1, dtype=torch.int64, device=device),
        top_k=torch.ones(1, dtype=torch.int64, device=device),
        **{name: torch.ones(1, dtype=torch.float64, device=device) for name in ("temperature", "min_p", "top_p")},
        uniform=torch.zeros(1, dtype=torch.float64, device=device),
    )
    token_ids = torch.zeros(1, dtype=torch.int64, device=device)
    return kernel_error(lambda: make_draw_tokens()(torch.zeros(1, 64, device=device), params, token_ids))


def make_draw_tokens() -> DrawTokens:
    """Returns the kernels that draw tokens; see `why_not_draw_tokens`."""
    return import_module("glimpse.engine.worker.cuda.sampling").draw_tokens


def make_cuda_ops(backend: CudaBackend, *, num_heads: int, device: torch.device) -> Ops:
    """Returns the operations of an available backend; see `why_not_triton` and `why_not_flashinfer`.

    Args:
        num_heads: number of query heads of a layer on this device.
    """
    ops = import_module("glimpse.engine.worker.cuda.cuda_ops")
    return ops.CudaOps(ops.TritonAttention() if backend == "triton" else _flashinfer(num_heads, device))


def kernel_error(compute: Callable[[], object]) -> str | None:
    """Runs `compute` and returns why it fails, or None if it does not.

    Kernels are compiled at their first launch. That requires a C compiler and Python's headers for Triton's launchers,
    and the CUDA compiler for FlashInfer. If these are missing, the server reports it at start.
    """
    try:
        compute()
        torch.cuda.synchronize()
    except Exception as error:
        return f"its kernels cannot run: {str(error).partition(chr(10))[0] or type(error).__name__}"
    return None


def _flashinfer(num_heads: int, device: torch.device) -> Any:
    module = import_module("glimpse.engine.worker.cuda.flashinfer_attention")
    return module.FlashInferAttention(num_heads=num_heads, device=device)


def _attend_once(device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Computes attention of two tokens with FlashInfer, which compiles the kernels of all steps."""
    attention = _flashinfer(1, device)
    cache = CacheShape(num_kv_heads=1, head_dim=head_dim).allocate(1, 16, dtype, device)
    chunk = SequenceChunk(sequence_id=0, start=0, token_ids=(0, 0), block_table=(0,), samples=False)
    layout = SequenceLayout(prompt_positions=np.zeros((3, 2), dtype=np.int64), delta=0, spans=())
    plan = attention.plan(make_batch([chunk], {0: layout}, block_size=16, device=device), cache)
    attention.attend(torch.zeros(2, 1, head_dim, dtype=dtype, device=device), cache.layer(0), plan)
