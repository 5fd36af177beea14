"""Compilation of native libraries, their cache, and errors."""

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from glimpse.engine.worker.native.compile_kernels import KERNELS as ENGINE_KERNELS
from glimpse.media.native.compile_resampler import KERNELS as MEDIA_KERNELS
from glimpse.native.compiler import BuildError, Sources, build_library, compile_object, main
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
def test_one_of_several_processes_compiles(toy: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    text = f'case "$*" in *-shared*) echo >> {calls}; sleep 0.2;; esac; exec g++ "$@"'
    monkeypatch.setenv("CXX", script(tmp_path / "slow-compiler", text))
    with ThreadPoolExecutor(3) as threads:  # each opens the folder by itself, as a process does
        assert len(set(threads.map(lambda _: build_library(toy, print), range(3)))) == 1
    assert calls.read_text().count("\n") == 1


@needs_compiler
def test_what_a_killed_compiler_left_is_removed_when_it_is_old(toy: Sources) -> None:
    left, young = (build_library(toy, print).parent / f"compiling-{name}" for name in ("left", "young"))
    for folder in (left, young):
        folder.mkdir()
        (folder / "toy.o").touch()
    os.utime(left, (0, 0))
    (toy.folder / "toy.cpp").write_text('extern "C" int answer() { return 43; }')
    library = build_library(toy, print)
    assert {each.name for each in library.parent.glob("compiling-*")} == {"compiling-young"}


def test_reports_the_compilers_error(toy: Sources) -> None:
    (toy.folder / "toy.cpp").write_text("not C++")
    with pytest.raises(BuildError, match=r"(?s)failed:\n.*toy\.cpp.*error"):
        build_library(toy, lambda stage: None)


@needs_compiler
def test_reports_a_cache_that_cannot_be_written(toy: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with pytest.raises(BuildError, match="cannot be written to /proc/none/glimpse"):
        build_library(toy, lambda stage: None)


def test_a_user_without_a_home_has_it_at_the_root() -> None:
    nobody = ("unshare", "--user", "--map-user=12345", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME")
    if shutil.which("unshare") is None or subprocess.run([*nobody, "true"], check=False).returncode:
        pytest.skip("needs namespaces of users")
    program = "from glimpse.native.compiler import cache_folder; print(cache_folder())"
    assert subprocess.check_output([*nobody, sys.executable, "-c", program], text=True) == "/.cache/glimpse\n"


def test_reports_a_missing_compiler(toy: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found: install g\+\+"):
        build_library(toy, lambda stage: None)


@pytest.mark.parametrize(("system", "machine"), [("Linux", "riscv64"), ("Darwin", "x86_64")])
def test_compiles_nothing_on_other_machines(
    toy: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CXX", str(tmp_path / "a compiler that must not run"))
    with pytest.raises(BuildError, match=f"there are no toy kernels for {system} on {machine}"):
        build_library(toy, lambda stage: None)
    assert not (tmp_path / "cache").exists()


def test_files_for_other_architectures_are_not_compiled(toy: Sources) -> None:
    for name in ("kernels_avx2", "kernels_amx", "levels_x86", "kernels_neon", "kernels_neon_dotprod"):
        (toy.folder / f"{name}.cpp").touch()
    assert [file.stem for file in toy.files("aarch64")] == ["kernels_neon", "kernels_neon_dotprod", "toy"]
    assert [file.stem for file in toy.files("x86_64")] == ["kernels_amx", "kernels_avx2", "levels_x86", "toy"]


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
    failed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert failed.returncode == 2
    assert "file --package is required" in failed.stderr


@needs_compiler
def test_library_beside_its_sources_needs_no_compiler(toy: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_toy", "--package"])
    main(toy)
    packaged = build_library(toy, lambda stage: None)
    assert packaged.parent == toy.folder
    with monkeypatch.context() as machine:
        machine.setenv("PATH", "")
        assert build_library(toy, lambda stage: None) == packaged
        (toy.folder / "toy.cpp").write_text('extern "C" int toy() { return 2; }')
        with pytest.raises(BuildError, match="no C"):  # the library of the earlier sources is not used
            build_library(toy, lambda stage: None)
    main(toy)
    assert list(toy.folder.glob("*.so")) == [build_library(toy, lambda stage: None)] != [packaged]


def test_reports_a_compiler_that_does_not_exist(toy: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "none++")
    with pytest.raises(BuildError, match=r"the compiler that CXX names, none\+\+, is not found: install g\+\+"):
        build_library(toy, lambda stage: None)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_says_what_to_install(toy: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails = '[ "$1" = --version ] && exec echo clang || echo "toy.cpp:1: error: \'omp.h\' file not found" >&2; exit 1'
    monkeypatch.setenv("CXX", script(tmp_path / "clang++", fails))
    with pytest.raises(BuildError, match=r"(?s)'omp\.h' file not found.*install libomp-dev"):
        build_library(toy, lambda stage: None)


def test_apples_clang_finds_the_header_of_openmp_at_homebrew_and_its_functions_in_the_process(
    toy: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    log = tmp_path / "log"
    compiles = f'[ "$1" = --version ] && exec echo Apple clang; echo "$@" >> {log}; for last; do :; done; : > "$last"'
    monkeypatch.setenv("CXX", script(tmp_path / "clang++", compiles))
    build_library(replace(toy, flags=("-fPIC", "-fopenmp")), lambda stage: None)
    compiled, linked = log.read_text().splitlines()
    assert compiled.startswith("-fPIC -Xclang -fopenmp -I/opt/homebrew/opt/libomp/include ")
    assert linked.startswith("-shared -fPIC -Wl,-undefined,dynamic_lookup ")


SELECTS_AVX2 = """
int before() { return 1; }
#pragma GCC target("avx2,fma")
int after() { return 2; }
"""


def test_selects_instructions_in_clangs_way(toy: Sources, tmp_path: Path) -> None:
    (toy.folder / "toy.cpp").write_text(SELECTS_AVX2)
    compiler = script(tmp_path / "clang++", "exit 0")
    compile_object(toy, toy.folder / "toy.cpp", tmp_path, compiler=compiler, is_clang=True)
    assert (tmp_path / "toy.cpp").read_text().splitlines()[2:] == [
        "int before() { return 1; }",
        '#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)',
        "int after() { return 2; }",
        "",
        "#pragma clang attribute pop",
    ]
