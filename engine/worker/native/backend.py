"""Moves a model to the native backend, or reports why it is unavailable."""

from collections.abc import Callable

import torch
from torch import nn

from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.native import spin_control
from glimpse.engine.worker.native.library import Level, NativeError, choose_level, load_library, machine_levels
from glimpse.engine.worker.native.linear import pack
from glimpse.engine.worker.native.native_ops import NativeOps
from glimpse.engine.worker.native.tuning import tune


def why_not_native(device: torch.device, on_progress: Callable[[str], None] = lambda _stage: None) -> str | None:
    """Returns why the native backend cannot run on this machine and device, or None if it can.

    Compiles the kernels unless they are cached.
    """
    if device.type != "cpu":
        return "the native backend requires the CPU"
    try:
        machine_levels(on_progress)
    except NativeError as error:
        return str(error)
    return None


def use_native(model: nn.Module, level: Level | None = None, dtype: torch.dtype = torch.bfloat16) -> Ops:
    """Packs a model's weights and returns operations that use the packed weights.

    Args:
        level: instruction set level; None for the one that `choose_level` returns.
        dtype: of activations and of weights that are not quantized, bfloat16 or float32.

    Raises:
        NativeError: the backend is unavailable; see `why_not_native`.
        CheckpointError: as for `tune`.
    """
    library, level = load_library(), level or choose_level()
    library.glimpse_set_num_threads(torch.get_num_threads())
    if torch.get_num_threads() > 1:
        spin_control.start(library)
    pack(model, library, level, dtype)
    tune(model, library)
    return NativeOps(library, level)
