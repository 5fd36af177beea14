"""C++ declarations as ctypes needs them: structures and functions are written once, in the C++ files."""

import re
from collections.abc import Iterable, Iterator
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_long, c_void_p
from pathlib import Path
from typing import Any

_TYPES = {"float": c_float, "int": c_int, "int32_t": c_int32, "int64_t": c_int64, "long": c_long, "void": None}
_COMMENT = re.compile(r"//.*")
_ENUMERATION = re.compile(r"^enum (\w+) : (\w+)", re.MULTILINE)
_STRUCTURE = re.compile(r"^struct (\w+) \{(.*?)^\};", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r'^extern "C" (\w+) (\w+)\(([^)]*)\)', re.MULTILINE)
_VARIABLES = re.compile(r"(?:const )?(?:\w+::)?(\w+)\b(.*)", re.DOTALL)
"""A type, and the names of variables, each with `*` if it is a pointer."""


class Declarations:
    """What the C++ files of a folder declare. Pointers to other things than `structures` are plain addresses."""

    def __init__(self, folder: Path, structures: Iterable[type[Structure]]) -> None:
        """Sets the fields of `structures` to those of the C++ structures with their names."""
        files = [*sorted(folder.glob("*.h")), *sorted(folder.glob("*.cpp"))]
        self._text = _COMMENT.sub("", "\n".join(file.read_text(encoding="utf-8") for file in files))
        self._types = _TYPES | {name: _TYPES[base] for name, base in _ENUMERATION.findall(self._text)}
        self._structures = {structure.__name__: structure for structure in structures}
        for name, body in _STRUCTURE.findall(self._text):
            if name in self._structures:
                self._structures[name]._fields_ = list(self._variables(body))

    def functions(self) -> Iterator[tuple[str, list[Any], Any]]:
        """Yields the name, the types of the arguments and the type of the result of each `extern "C"` function."""
        for result, name, parameters in _FUNCTION.findall(self._text):
            yield name, [kind for _, kind in self._variables(parameters.replace(",", ";"))], self._types[result]

    def _variables(self, text: str) -> Iterator[tuple[str, Any]]:
        for declaration in filter(None, map(str.strip, text.split(";"))):
            match = _VARIABLES.fullmatch(declaration)
            assert match is not None, declaration
            for name in match[2].split(","):
                yield name.strip(" *"), self._pointer(match[1]) if "*" in name else self._types[match[1]]

    def _pointer(self, target: str) -> Any:
        return POINTER(self._structures[target]) if target in self._structures else c_void_p
