"""The structures and enumerations that Python passes are those of the C++ files."""

import os
import re
import subprocess
from enum import IntEnum
from pathlib import Path

from glimpse.engine.worker.native.compile_kernels import KERNELS
from glimpse.engine.worker.native.library import STRUCTURES, Activation, DType, Level
from glimpse.engine.worker.native.recorder import OperationKind


def test_structures_and_enumerations_are_those_of_the_files(tmp_path: Path) -> None:
    checks: list[str] = []
    for structure in STRUCTURES:
        name = structure.__name__
        fields: list[tuple[str, type]] = [each[:2] for each in structure._fields_]
        offsets = [f"offsetof({name}, {field}) == {getattr(structure, field).offset}" for field, _ in fields]
        sizes = [f"sizeof({name}::{field}) == {getattr(structure, field).size}" for field, _ in fields]
        checks += [*offsets, *sizes]
        assert fields
    checks += [f"{_constant(each)} == {each.value}" for kind in (Activation, DType, Level) for each in kind]
    checks += [f"{_constant(each)}Operation == {each.value}" for each in OperationKind]
    lines = [f"static_assert({check});" for check in checks]
    source = tmp_path / "checks.cpp"
    source.write_text(
        "\n".join(
            ["#include <cstddef>", '#include "cpu.h"', '#include "program.cpp"', "using namespace glimpse;", *lines]
        )
    )
    command = [os.environ.get("CXX") or "g++", "-std=c++17", "-fsyntax-only", f"-I{KERNELS.folder}", str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr


def _constant(member: IntEnum) -> str:
    """Returns the name of a constant in C++, such as kGatedSilu."""
    return "k" + re.sub(r"_?([A-Z])([A-Z0-9]*)", lambda match: match[1] + match[2].lower(), member.name)
