"""The choice of the native kernels' instruction set level, by option and by environment variable."""

from pathlib import Path
from typing import get_args

import pytest

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import CpuLevel, EngineConfig
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.engine.worker.native import library
from glimpse.engine.worker.native.library import Level, NativeError, choose_level, machine_levels
from glimpse.media.native.compile_resampler import KERNELS as MEDIA_KERNELS
from glimpse.native.compiler import build_library
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


BELOW_AMX = [Level.AVX2, Level.AVX512, Level.AVX512_VNNI, Level.AVX512_BF16]


@pytest.mark.parametrize(
    ("vendor", "levels", "expected"),
    [
        ("GenuineIntel", BELOW_AMX, Level.AVX512_VNNI),  # Cooper Lake, Sapphire Rapids without AMX
        ("GenuineIntel", [*BELOW_AMX, Level.AMX], Level.AMX),
        ("GenuineIntel", BELOW_AMX[:-1], Level.AVX512_VNNI),
        ("GenuineIntel", [Level.AVX2, Level.AVX_VNNI], Level.AVX_VNNI),
        ("AuthenticAMD", BELOW_AMX, Level.AVX512_BF16),
        ("", BELOW_AMX, Level.AVX512_BF16),
    ],
)
def test_default_depends_on_the_processors_maker(
    monkeypatch: pytest.MonkeyPatch, vendor: str, levels: list[Level], expected: Level
):
    monkeypatch.delenv("GLIMPSE_CPU_LEVEL", raising=False)
    monkeypatch.setattr(library, "machine_levels", lambda: levels)
    monkeypatch.setattr(library, "processor_vendor", lambda: vendor)
    assert choose_level() is expected
    assert choose_level(levels[-1].option) is levels[-1], "options are honored"


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


EXTENSIONS = {
    Level.AVX2: {"avx2", "fma", "f16c"},
    Level.AVX_VNNI: {"avx_vnni"},
    Level.AVX512: {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    Level.AVX512_VNNI: {"avx512_vnni"},
    Level.AVX512_BF16: {"avx512_bf16"},
    Level.AMX: {"amx_tile", "amx_int8", "amx_bf16"},
}
"""What each level needs, as Linux names it, beside what the levels above it need. Only AVX-VNNI stands alone."""


@needs_kernels
def test_levels_are_those_that_linux_reports():
    flags = set(Path("/proc/cpuinfo").read_text().split("\n\n")[0].split())
    expected: list[Level] = []
    needed: set[str] = set()
    for level, extensions in EXTENSIONS.items():
        if needed | extensions <= flags:
            expected.append(level)
        if level is not Level.AVX_VNNI:
            needed |= extensions
    if Level.AMX not in LEVELS and Level.AMX in expected:
        expected.remove(Level.AMX)  # the system does not let this process use its registers
    assert expected == LEVELS


@needs_kernels
def test_refuses_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch):
    other = build_library(MEDIA_KERNELS, lambda _stage: None)
    monkeypatch.setenv("GLIMPSE_NATIVE_LIBRARY", str(other))
    with pytest.raises(NativeError, match=r"of another version, compile it again: .*undefined symbol: glimpse_"):
        machine_levels()
