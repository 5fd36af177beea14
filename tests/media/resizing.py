"""The instruction set levels of native resampling that this machine can run."""

import os
import platform
import shutil

import pytest

from glimpse.media.native.library import Resizer, ResizerLevel, native_resizer


def _resizers() -> list[Resizer]:
    best = native_resizer()
    return [] if best is None else [Resizer(best.path, level) for level in ResizerLevel if level <= best.level]


RESIZERS = _resizers()
at_each_level = pytest.mark.parametrize("resizer", RESIZERS, ids=lambda resizer: resizer.level.name)
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or "g++") is None or platform.machine() != "x86_64",
    reason="no C++ compiler, or not x86-64",
)
