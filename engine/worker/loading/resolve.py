"""Resolves what the engine computes with on this machine: device, dtype, backend and instruction set level."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import Backend, ChosenBackend, CpuLevel, Device, DType, EngineOptions
from glimpse.engine.worker.cuda.backend import why_not_flashinfer, why_not_triton
from glimpse.engine.worker.layers.fp8 import why_not_fp8
from glimpse.engine.worker.layers.quantized import QuantizationScheme, is_fp8, resolve_scheme
from glimpse.engine.worker.native.backend import why_not_native
from glimpse.engine.worker.native.library import Level, NativeError, choose_level

_log = logging.getLogger(__name__)


def assign_device(device: torch.device, *, rank: int, num_ranks: int) -> torch.device:
    """Returns the device of a rank and makes it the current device of this process.

    Args:
        device: where the model computes.
        rank: the rank's number among those of this machine.
        num_ranks: ranks of this machine.

    Raises:
        CheckpointError: the number of ranks is not positive, or there are fewer GPUs than ranks.
    """
    if num_ranks < 1:
        raise CheckpointError(f"'--tensor-parallel-size': expected at least 1, got {num_ranks}")
    if num_ranks == 1 or device.type == "cpu":
        return device
    num_devices = torch.cuda.device_count()
    if num_ranks > num_devices:
        raise CheckpointError(
            f"--tensor-parallel-size: {num_ranks} ranks on this machine, which has {num_devices} CUDA devices"
        )
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def resolve_device(device: Device) -> torch.device:
    """Returns the device to compute on.

    Raises:
        CheckpointError: CUDA was requested but is not available.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise CheckpointError("--device cuda: torch finds no CUDA device on this machine")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def check_fp8(scheme: QuantizationScheme | None, device: torch.device) -> None:
    """
    Raises:
        CheckpointError: the weights are FP8, and the device cannot compute with them.
    """
    if is_fp8(scheme) and (why := why_not_fp8(device)):
        raise CheckpointError(f"fp8 weights: {why}")


class NativeAvailability:
    """Whether the native backend can run a model. Compiles its kernels when first asked, at most once."""

    def __init__(
        self, device: torch.device, scheme: QuantizationScheme | None, on_progress: Callable[[str, float], None]
    ) -> None:
        self._device = device
        self._is_fp8 = is_fp8(scheme)
        self._on_progress = on_progress

    @cached_property
    def why_not(self) -> str | None:
        """Why it cannot run; None if it can."""
        if self._is_fp8:
            return "the native backend does not support fp8 weights; int8 is its fastest scheme"
        return why_not_native(self._device, lambda stage: self._on_progress(stage, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """What a rank computes with."""

    device: torch.device
    dtype: torch.dtype
    """Type of activations, and of weights that are not quantized."""
    backend: ChosenBackend
    level: Level | None
    """Instruction set level of the native backend; None on other backends."""
    scheme: QuantizationScheme | None
    """How the decoder's weights are quantized; None if they are not, or if `auto` has not chosen yet."""
    native: NativeAvailability


def resolve_computing(
    options: EngineOptions, model: ModelConfig, device: torch.device, on_progress: Callable[[str, float], None]
) -> Computing:
    """Returns what a rank computes with on its device.

    Raises:
        CheckpointError: an option cannot be honored for this model or on this machine.
    """
    scheme = resolve_scheme(options.quantization, model.quantization)
    check_fp8(scheme, device)
    native = NativeAvailability(device, scheme, on_progress)
    dtype = resolve_dtype(options.dtype, stored=model.dtype, device=device, backend=options.backend, native=native)
    backend = resolve_backend(
        options.backend,
        device=device,
        dtype=dtype,
        head_dim=model.text.head_dim,
        native=native,
        masks=model.text.sliding is not None or model.text.bidirectional_run > 0,
    )
    if backend == "flashinfer" and options.kv_cache_dtype == "int8":
        raise CheckpointError("'--kv-cache-dtype': expected auto with --backend flashinfer, got int8; choose triton")
    if scheme == "w8a8" and backend != "native":
        raise CheckpointError(
            f"'--quantization': expected int8, int4 or fp8 with the {backend} backend, got w8a8, which only the native"
            " kernels of CPUs compute"
        )
    level = resolve_level(options.cpu_level) if backend == "native" else None
    return Computing(device=device, dtype=dtype, backend=backend, level=level, scheme=scheme, native=native)


def unused_options(options: EngineOptions, computing: Computing) -> list[str]:
    """Returns the flags that differ from their defaults and change nothing on this device and backend."""
    is_cpu, defaults = computing.device.type == "cpu", EngineOptions()
    is_unused = {
        "gpu_memory_utilization": is_cpu,
        "cuda_graphs": is_cpu,
        "num_threads": not is_cpu,
        "cpu_level": computing.backend != "native",
    }
    names = (name for name, unused in is_unused.items() if unused and getattr(options, name) != getattr(defaults, name))
    return [f"--{name.replace('_', '-')}" for name in names]


def context_window(options: EngineOptions, text: TextConfig) -> int:
    """Returns the most tokens of a sequence that the model and the options allow.

    A bidirectional prompt is computed in one step, beside a token of each other sequence.
    """
    step = options.max_batch_tokens - options.max_sequences if text.bidirectional_prompt else None
    limits = (text.max_position_embeddings, options.max_model_len, step)
    return min(limit for limit in limits if limit is not None)


def resolve_dtype(
    dtype: DType, *, stored: str, device: torch.device, backend: Backend, native: NativeAvailability
) -> torch.dtype:
    """Returns the dtype of weights and activations.

    Args:
        dtype: the requested one.
        stored: the checkpoint's.
        device: where the model computes.
        backend: the requested one. On a CPU the native backend is fast in bfloat16, torch only on some processors.
        native: asked only if the answer depends on it.
    """
    if dtype != "auto":
        return getattr(torch, dtype)
    if device.type == "cuda":
        # float16 checkpoints, such as AWQ and GPTQ ones, were trained in bfloat16 and can overflow in float16.
        return torch.float32 if stored == "float32" else torch.bfloat16
    if backend == "native" or _cpu_multiplies_bfloat16():
        return torch.bfloat16
    return torch.bfloat16 if backend == "auto" and native.why_not is None else torch.float32


def resolve_backend(
    backend: Backend,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    native: NativeAvailability,
    masks: bool = False,
) -> ChosenBackend:
    """Returns the backend of the model's operations.

    Args:
        backend: the requested one.
        device: where the model computes.
        dtype: of weights and activations.
        head_dim: dimensions of a head of attention.
        native: asked only if the answer depends on it.
        masks: whether layers have sliding windows or bidirectional runs, which the kernels for CUDA lack.

    Raises:
        CheckpointError: the requested backend is not available.
    """
    no_masks = "it has no sliding windows, which the model's layers have" if masks else None
    why_not: Mapping[ChosenBackend, Callable[[], str | None]] = {
        "flashinfer": lambda: no_masks or why_not_flashinfer(device, dtype, head_dim),
        "triton": lambda: no_masks or why_not_triton(device),
        "native": lambda: native.why_not,
        "torch": lambda: None,
    }
    if backend != "auto":
        if reason := why_not[backend]():
            raise CheckpointError(f"--backend {backend}: {reason}")
        return backend
    preferred = _PREFERRED.get(device.type, "torch")
    if (reason := why_not[preferred]()) is None:
        return preferred
    if device.type == "cuda":
        _log.warning("using the slower torch backend: %s", reason)
    return "torch"


_PREFERRED: Mapping[str, ChosenBackend] = {"cuda": "triton", "cpu": "native"}
"""What `auto` prefers to torch, by device type. FlashInfer is not measured yet, so it must be requested."""


def resolve_level(level: CpuLevel) -> Level:
    """Returns the instruction set level of the native kernels.

    Raises:
        CheckpointError: this processor does not have the requested level.
    """
    try:
        return choose_level(level)
    except NativeError as error:
        raise CheckpointError(str(error)) from error


def _cpu_multiplies_bfloat16() -> bool:
    cpu_info = Path("/proc/cpuinfo")
    if not cpu_info.exists():
        return False
    # Two extensions of x86, and one of Arm.
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(cpu_info.read_text().split())
