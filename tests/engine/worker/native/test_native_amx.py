"""The kernels for AMX on processors with AVX-512 BF16 alone: the tests of kernels, with tile registers in software."""

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.engine.worker.native.library import Level
from glimpse.native.compiler import build_library
from tests.engine.levels import LEVELS

FOLDER = Path(__file__).parent
HEADER = FOLDER / "emulated_amx.h"


@pytest.mark.skipif(Level.AMX in LEVELS, reason="the processor has AMX, which the tests of kernels try")
@pytest.mark.skipif(Level.AVX512_BF16 not in LEVELS, reason="the rest of these kernels needs AVX-512 BF16")
def test_the_kernels_for_amx_pass_the_tests_of_kernels():
    version = sha256(HEADER.read_bytes()).hexdigest()
    # Less optimized than elsewhere, in half the time.
    flags = (*KERNELS.flags, "-O1", "-fexpensive-optimizations", f"-DEMULATED_{version}", "-include", str(HEADER))
    sources = replace(KERNELS, name=f"{KERNELS.name}-emulated-amx", flags=flags, variable="GLIMPSE_NO_VARIABLE")
    environment = {**os.environ, KERNELS.variable: str(build_library(sources, lambda _stage: None))}
    files = [str(FOLDER / f"test_native_{kernels}.py") for kernels in ("attention", "groups", "linear", "low_rank")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "amx or every_level", *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
