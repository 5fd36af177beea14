"""The instruction set levels of native kernels that this machine can run."""

import pytest

from glimpse.engine.native.library import Level, NativeError, machine_levels


def _levels() -> list[Level]:
    try:
        return machine_levels()
    except NativeError:
        return []


LEVELS = _levels()
needs_kernels = pytest.mark.skipif(not LEVELS, reason="this machine cannot build or run the native kernels")
at_each_level = pytest.mark.parametrize("level", LEVELS)
