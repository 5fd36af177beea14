"""The choice of the native kernels' instruction set level, by option and by environment variable."""

from pathlib import Path
from typing import get_args

import pytest

from glimpse.engine.config import CpuLevel, EngineConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.loading.load_engine import load_core
from glimpse.engine.native import library
from glimpse.engine.native.library import Level, NativeError, choose_level
from tests.engine.levels import LEVELS, needs_kernels


@pytest.fixture
def older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with AVX-512 but without its later extensions."""
    monkeypatch.delenv("GLIMPSE_CPU_LEVEL", raising=False)
    monkeypatch.setattr(library, "machine_levels", lambda: [Level.AVX2, Level.AVX512])


def test_option_has_the_names_of_all_levels():
    assert get_args(CpuLevel) == ("auto", *(level.option for level in Level))


@pytest.mark.usefixtures("older_processor")
def test_default_is_the_fastest_level():
    assert choose_level() is Level.AVX512


@pytest.mark.usefixtures("older_processor")
def test_option_comes_before_the_environment_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLIMPSE_CPU_LEVEL", "avx2")
    assert choose_level() is Level.AVX2
    assert choose_level("avx512") is Level.AVX512


@pytest.mark.usefixtures("older_processor")
@pytest.mark.parametrize("name", ["amx", "sse2"])
def test_refuses_a_level_that_the_processor_lacks(name: str, monkeypatch: pytest.MonkeyPatch):
    lacks = rf": expected auto or a level of this processor \(avx2, avx512\), got {name}"
    with pytest.raises(NativeError, match="--cpu-level" + lacks):
        choose_level(name)
    monkeypatch.setenv("GLIMPSE_CPU_LEVEL", name)
    with pytest.raises(NativeError, match="GLIMPSE_CPU_LEVEL" + lacks):
        choose_level()


@needs_kernels
def test_engine_refuses_a_level_that_the_processor_lacks(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library, "machine_levels", lambda: LEVELS[:1])
    config = EngineConfig(model_path=str(tiny_checkpoint), dtype="bfloat16", cpu_level="amx", num_threads=1)
    with pytest.raises(CheckpointError, match=r"--cpu-level: expected auto or a level of this processor \(avx2\)"):
        load_core(config, on_progress=lambda stage, fraction: None)
