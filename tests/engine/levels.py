"""The instruction set levels of native kernels that this machine can run."""

import pytest

from glimpse.engine.native.library import Level, NativeError, machine_level


def _levels() -> list[Level]:
    try:
        best = machine_level()
    except NativeError:
        return []
    return [level for level in Level if level <= best]


LEVELS = _levels()
needs_kernels = pytest.mark.skipif(not LEVELS, reason="this machine cannot build or run the native kernels")
at_each_level = pytest.mark.parametrize("level", LEVELS)
