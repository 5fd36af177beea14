"""The kernels for AMX on processors with AVX-512 BF16 alone: the tests of kernels, with tile registers in software."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.engine.worker.native.library import Level
from glimpse.native.compiler import build_library
from tests.engine.levels import LEVELS

FOLDER = Path(__file__).parent


@pytest.mark.skipif(Level.AMX in LEVELS, reason="the processor has AMX, which the tests of kernels try")
@pytest.mark.skipif(Level.AVX512_BF16 not in LEVELS, reason="the rest of these kernels needs AVX-512 BF16")
def test_the_kernels_for_amx_pass_the_tests_of_kernels(tmp_path: Path):
    # A library of these files alone needs the whole one, and what has the same names there gives way to it.
    sources = [str(KERNELS.folder / f"{name}.cpp") for name in ("attention_amx", "kernels_amx", "levels_x86")]
    options = ["-march=x86-64-v3", "-include", str(FOLDER / "emulated_amx.h")]
    whole, library = str(build_library(KERNELS, lambda _stage: None)), str(tmp_path / "emulated.so")
    subprocess.run(["g++", *KERNELS.flags, *options, "-shared", *sources, whole, "-o", library], check=True)
    environment = {**os.environ, KERNELS.variable: library}
    files = [str(FOLDER / f"test_native_{kernels}.py") for kernels in ("attention", "groups", "linear", "low_rank")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "amx or every_level", *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
