"""The threads of an engine on a CPU, and the line in its log that says what computes there."""

import logging

import torch

from glimpse.engine.config import ChosenBackend, EngineOptions
from glimpse.engine.loading.resolve import NativeAvailability
from glimpse.engine.native.library import Level
from glimpse.native.processors import num_processors

_log = logging.getLogger(__name__)


def set_threads(options: EngineOptions) -> None:
    """Sets the number of threads that this rank computes with."""
    num_threads = options.num_threads or num_processors()
    torch.set_num_threads(max(1, num_threads // options.tensor_parallel_size))


def num_threads(options: EngineOptions) -> int:
    """Returns the number of compute threads of all ranks, after `set_threads`."""
    return torch.get_num_threads() * options.tensor_parallel_size


def log_cpu(
    options: EngineOptions,
    *,
    dtype: torch.dtype,
    backend: ChosenBackend,
    level: Level | None,
    native: NativeAvailability,
) -> None:
    """Logs what computes: a warning if it is torch although nobody asked for it, with the reason."""
    kernels = "torch" if level is None else f"native kernels, {level.title}"
    threads = num_threads(options)
    line = f"cpu: {kernels}, {str(dtype).removeprefix('torch.')}, {threads} thread{'s' * (threads > 1)}"
    if backend == "torch" and options.backend == "auto":
        reason = "--dtype float32 excludes them" if options.dtype == "float32" else native.why_not
        _log.warning("%s; the native kernels are faster: %s", line, reason)
    else:
        _log.info("%s", line)
