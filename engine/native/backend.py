"""Puts a model onto the native backend, or says why it cannot be. Knows models as modules that have `ops`."""

from collections.abc import Callable

import torch
from torch import nn

from glimpse.engine.layers.ops import Ops
from glimpse.engine.native.library import Level, NativeError, load_library, machine_level
from glimpse.engine.native.linear import pack
from glimpse.engine.native.native_ops import NativeOps


def why_not_native(
    device: torch.device, dtype: torch.dtype, on_progress: Callable[[str], None] = lambda _stage: None
) -> str | None:
    """Why this machine cannot compute natively on this device and in this dtype; None if it can.

    Compiles the kernels if they have not been on this machine.
    """
    if device.type != "cpu":
        return "the native backend computes on the CPU only"
    if dtype is not torch.bfloat16:
        return "the native backend computes in bfloat16 only"
    try:
        machine_level(on_progress)
    except NativeError as error:
        return str(error)
    return None


def use_native(model: nn.Module, level: Level | None = None) -> Ops:
    """Packs a model's weights and returns the operations that take them.

    Args:
        model: in bfloat16 on the CPU.
        level: of the kernels; None takes the machine's. A lower one is for tests.

    Raises:
        NativeError: the machine cannot; see `why_not_native`.
    """
    library, level = load_library(), level or machine_level()
    pack(model, library, level)
    return NativeOps(library, level)
