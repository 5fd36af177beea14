"""Makes the CUDA backend's operations, or says why they cannot be had.

Triton and FlashInfer are not among the requirements, so neither is loaded before it is to compute.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch

from glimpse.engine.layers.ops import Ops
from glimpse.engine.tensors.kv_cache import allocate_kv_cache

CudaBackend = Literal["triton", "flashinfer"]

FLASHINFER_HEAD_DIMS = (64, 128, 256)
"""For which it has kernels."""


def why_not_triton(device: torch.device) -> str | None:
    """Why our own kernels cannot compute on this device; None if they can."""
    if device.type != "cuda":
        return "it computes on CUDA devices only"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    return kernel_error(lambda: import_module("glimpse.engine.cuda.rows").quick_gelu(torch.zeros(1, device=device)))


def why_not_flashinfer(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashInfer cannot compute attention of such heads; None if it can."""
    if reason := why_not_triton(device):
        return reason  # which computes the rest
    if find_spec("flashinfer") is None:
        return 'FlashInfer is not installed: pip install "glimpse[flashinfer]"'
    if dtype is torch.float32:
        return "it does not compute in float32"
    if head_dim not in FLASHINFER_HEAD_DIMS:
        return f"it has no kernels for heads of {head_dim} dimensions"
    return kernel_error(lambda: _attend_once(device, dtype, head_dim))


def make_cuda_ops(backend: CudaBackend, *, num_heads: int, device: torch.device) -> Ops:
    """The operations of a backend that can be had; see `why_not_triton` and `why_not_flashinfer`.

    Args:
        backend: what computes attention.
        num_heads: query heads of a layer, as far as this device computes them.
        device: CUDA.
    """
    ops = import_module("glimpse.engine.cuda.cuda_ops")
    if backend == "triton":
        return ops.CudaOps(ops.TritonAttention())
    attention = import_module("glimpse.engine.cuda.flashinfer_attention").FlashInferAttention(
        num_heads=num_heads, device=device
    )
    return ops.CudaOps(attention)


def kernel_error(compute: Callable[[], object]) -> str | None:
    """What goes wrong when it is tried; None if nothing does.

    Kernels are compiled when they are first launched, and what for is on each machine: a C compiler and Python's
    headers for what launches them, CUDA's own compiler for FlashInfer's. A server that lacks it should say so at start.
    """
    try:
        compute()
        torch.cuda.synchronize()
    except Exception as error:
        return f"its kernels cannot run: {str(error).partition(chr(10))[0] or type(error).__name__}"
    return None


def _attend_once(device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Two tokens through FlashInfer, which makes it compile what all steps need."""
    attention = import_module("glimpse.engine.cuda.flashinfer_attention").FlashInferAttention(
        num_heads=1, device=device
    )
    cache = allocate_kv_cache(
        num_layers=1, num_blocks=1, block_size=16, num_kv_heads=1, head_dim=head_dim, dtype=dtype, device=device
    )
    tables = torch.zeros(1, 1, dtype=torch.int64, device=device)
    plan = attention.plan(query_lengths=[2], key_lengths=[2], block_tables=tables, cache=cache)
    attention.attend(torch.zeros(2, 1, head_dim, dtype=dtype, device=device), cache.layer(0), plan)
