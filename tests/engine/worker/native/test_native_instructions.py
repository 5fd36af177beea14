"""The compiled kernels contain the instructions of their level and no others, and keep their sums in registers.

Results are right on a fast machine whatever the compiler made of a kernel. So this reads the library itself.
"""

import re
import shutil

import pytest

from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.engine.worker.native.library import Level
from glimpse.native.compiler import build_library
from tests.engine.levels import LEVELS
from tests.engine.worker.native.disassembly import Function, functions

pytestmark = [
    pytest.mark.skipif(not LEVELS, reason="this machine cannot build the native kernels"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed"),
]

FILES = {
    "attention_avx2.cpp": Level.AVX2,
    "attention_avx512f.cpp": Level.AVX512,
    "attention_avx512.cpp": Level.AVX512_BF16,
    "attention_amx.cpp": Level.AMX,
    "delta_net_avx2.cpp": Level.AVX2,
    "delta_net_avx512.cpp": Level.AVX512,
    "kernels_avx2.cpp": Level.AVX2,
    "kernels_avx_vnni.cpp": Level.AVX_VNNI,
    "kernels_avx512.cpp": Level.AVX512,
    "kernels_avx512_vnni.cpp": Level.AVX512_VNNI,
    "kernels_avx512_bf16.cpp": Level.AVX512_BF16,
    "kernels_amx.cpp": Level.AMX,
}
"""The level that each file is for."""

AVX512 = r"%zmm|%k[1-7]|%[xy]mm(1[6-9]|2\d|3[01])"
"""Registers that only AVX-512 has."""
VNNI, BF16, AMX = "vpdp(?:busd|wssd)", "vdpbf16ps|vcvtne2?ps2bf16", "tdp|tileload"
EXCLUDED = {
    Level.AVX2: f"{AVX512}|{VNNI}|{BF16}|{AMX}",
    Level.AVX_VNNI: rf"{AVX512}|(?<!{{vex}} ){VNNI}|{BF16}|{AMX}",
    Level.AVX512: f"{VNNI}|{BF16}|{AMX}",
    Level.AVX512_VNNI: f"{BF16}|{AMX}",
    Level.AVX512_BF16: AMX,
}
"""Instructions that processors of a level may lack, as a regular expression."""
PRODUCTS = {
    Level.AVX2: [r"vfmadd\w+ps .*%ymm"],
    Level.AVX_VNNI: [r"vfmadd\w+ps .*%ymm"],
    Level.AVX512: [r"vfmadd\w+ps .*%zmm"],
    Level.AVX512_VNNI: [r"vfmadd\w+ps .*%zmm"],
    Level.AVX512_BF16: [r"vdpbf16ps .*%zmm", "vcvtneps2bf16"],
    Level.AMX: ["tdpbf16ps", "vcvtneps2bf16"],
}
"""Instructions that kernels of a level compute with, as regular expressions."""
INTEGER_PRODUCTS = {
    Level.AVX2: [r"vpmaddwd .*%ymm", r"vpmaddubsw .*%ymm"],
    Level.AVX_VNNI: [r"\{vex\} vpdpwssd .*%ymm", r"\{vex\} vpdpbusd .*%ymm"],
    Level.AVX512: [r"vpmaddwd .*%zmm", r"vpmaddubsw .*%zmm"],
    Level.AVX512_VNNI: [r"vpdpwssd .*%zmm", r"vpdpbusd .*%zmm"],
    Level.AVX512_BF16: [r"vpdpwssd .*%zmm", r"vpdpbusd .*%zmm"],
    Level.AMX: ["tdpbssd", r"vpdpwssd .*%zmm", r"vpdpbusd .*%zmm"],
}
"""Instructions of products with weights of 8 and 4 bits."""
MULTIPLIES = re.compile(r"vfmadd\w+ps|vdpbf16ps|(\{vex\} )?vpdp(busd|wssd)|vpmaddubsw|vpmaddwd")
STORES_ON_STACK = re.compile(r"^vmov\w+ %[xyz]mm\d+,-?(0x[0-9a-f]+)?\(%r[sb]p")
BUSY_LOOP = 8
"""Multiplications in the body of a loop that is a kernel's."""


@pytest.fixture(scope="module")
def compiled() -> list[Function]:
    return functions(build_library(KERNELS, lambda _stage: None))


def of_file(compiled: list[Function], file: str) -> list[Function]:
    found = [function for function in compiled if function.file == file]
    assert found, f"{file} has no functions"
    return found


def test_names_the_level_of_each_file_that_selects_instructions():
    selecting = {file.name for file in KERNELS.files("x86_64") if "#pragma GCC target" in file.read_text()}
    assert selecting == set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_kernels_compute_with_the_instructions_of_their_level(compiled: list[Function], file: str):
    text = "\n".join(function.text for function in of_file(compiled, file))
    level = FILES[file]
    for product in PRODUCTS[level] + (INTEGER_PRODUCTS[level] if file.startswith("kernels_") else []):
        assert re.search(product, text), f"no {product}"


@pytest.mark.parametrize("file", [file for file, level in FILES.items() if level in EXCLUDED])
def test_kernels_have_no_instructions_above_their_level(compiled: list[Function], file: str):
    excluded = re.compile(EXCLUDED[FILES[file]])
    above = [
        f"{function.name}: {text}"
        for function in of_file(compiled, file)
        for _, text in function.instructions
        if excluded.search(text)
    ]
    assert above == []


@pytest.mark.parametrize("file", FILES)
def test_busy_loops_keep_their_sums_in_registers(compiled: list[Function], file: str):
    num_loops = 0
    for function in of_file(compiled, file):
        for loop in function.innermost_loops():
            num_products = sum(map(bool, map(MULTIPLIES.match, loop)))
            if num_products >= BUSY_LOOP:
                num_loops += 1
                num_stores = sum(map(bool, map(STORES_ON_STACK.match, loop)))
                assert num_stores < 0.2 * num_products, f"{function.name} stores {num_stores} vectors on the stack"
    assert num_loops or FILES[file] is Level.AMX, "no loop multiplies"


def test_all_other_code_runs_on_any_processor(compiled: list[Function]):
    wide = [
        function.name
        for function in compiled
        # The linker keeps one of the copies that several files have of such a function. It must suit all processors.
        if function.file not in FILES
        and re.search("%[yz]mm", function.text)
        # Clones for processors that have them, chosen when the library is loaded.
        and not re.search(r"\.(avx|arch_)[\w.-]+$", function.name)
    ]
    assert wide == []
