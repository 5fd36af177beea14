"""Compilation of native libraries, their cache, and errors."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from glimpse.engine.native.compile_kernels import KERNELS as ENGINE_KERNELS
from glimpse.media.native.compile_resampler import KERNELS as MEDIA_KERNELS
from glimpse.native.compiler import BuildError, Sources, build_library
from tests.media.resizing import needs_compiler


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sources:
    """Sources of a library, with an empty cache."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "toy.cpp").write_text('extern "C" int toy() { return 1; }')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Sources(name="toy", folder=folder, flags=("-fPIC",), variable="GLIMPSE_TOY_LIBRARY")


@needs_compiler
def test_compiles_each_version_of_the_sources_once(toy: Sources) -> None:
    stages: list[str] = []
    first = build_library(toy, stages.append)
    assert build_library(toy, stages.append) == first
    assert stages == ["compiling the toy kernels (once on this machine)"]
    (toy.folder / "toy.cpp").write_text('extern "C" int toy() { return 2; }')
    second = build_library(toy, stages.append)
    assert second != first
    assert len(stages) == 2
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, second.name])


@needs_compiler
def test_reports_the_compilers_error(toy: Sources) -> None:
    (toy.folder / "toy.cpp").write_text("not C++")
    with pytest.raises(BuildError, match=r"(?s)failed:\n.*toy\.cpp.*error"):
        build_library(toy, lambda stage: None)


@needs_compiler
def test_reports_a_cache_that_cannot_be_written(toy: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with pytest.raises(BuildError, match="cannot be written to /proc/none/glimpse"):
        build_library(toy, lambda stage: None)


def test_reports_a_missing_compiler(toy: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found: install g\+\+"):
        build_library(toy, lambda stage: None)


@pytest.mark.parametrize(("system", "machine"), [("Linux", "aarch64"), ("Darwin", "arm64"), ("Darwin", "x86_64")])
def test_compiles_nothing_on_other_machines(
    toy: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CXX", str(tmp_path / "a compiler that must not run"))
    with pytest.raises(BuildError, match=f"the toy kernels require Linux on x86-64, this is {system} on {machine}"):
        build_library(toy, lambda stage: None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("kernels", [ENGINE_KERNELS, MEDIA_KERNELS], ids=["engine", "media"])
def test_library_compiled_ahead_of_time_needs_no_compiler(
    kernels: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(kernels.variable, str(tmp_path / "compiled.so"))
    monkeypatch.setenv("PATH", "")
    stages: list[str] = []
    assert build_library(kernels, stages.append) == tmp_path / "compiled.so"
    assert stages == []


@needs_compiler
def test_command_compiles_ahead_of_time(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glimpse.media.native.compile_resampler"]
    subprocess.run([*command, str(tmp_path / "media.so")], check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["media.so"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
