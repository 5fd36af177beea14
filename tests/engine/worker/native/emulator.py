"""The kernels for ARM, cross-compiled and run by QEMU's user mode emulation on the memory of this process."""

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from ctypes import CDLL, CFUNCTYPE, addressof
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from glimpse.native.compiler import Sources, build_library

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
needs_emulator = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None,
    reason="apt-get install g++-aarch64-linux-gnu qemu-user: the kernels for ARM are not tried",
)
Function = tuple[str, list[Any], Any]
"""Name, types of arguments, type of the result."""
_PAGE = 4096
_SPACING = 1 << 30
"""Bytes between the memory of this process and that of the emulator: both may grow."""
_ARGUMENTS = 20


class EmulatedLibrary:
    """A library for ARM, called like the one of this machine. A process of the emulator asks for the pages that a call
    reads, and returns those that it has changed."""

    def __init__(self, path: Path, program: Path, cpu: str, functions: Iterable[Function]) -> None:
        """
        Args:
            path: the library.
            program: emulated.cpp, compiled.
            cpu: the processor, as QEMU names it.
            functions: those of the library.
        """
        command = [EMULATOR, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", str(program), str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        while True:
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._input, self._output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
            self._call("getpid", [])  # the library is loaded
            if not self._overlaps():
                break
            self.close()
        for name, argtypes, restype in functions:
            setattr(self, name, self._callable(name, argtypes, restype))

    def close(self) -> None:
        self._input.close()
        self._output.close()
        self._process.wait()

    def _callable(self, name: str, argtypes: list[Any], restype: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> int | None:
            result = self._call(name, [_number(argument) for argument in arguments])
            return None if restype is None else result

        return CFUNCTYPE(restype, *argtypes)(call)  # converts arguments as ctypes does for a library

    def _call(self, name: str, arguments: list[int]) -> int:
        numbers = arguments + [0] * (_ARGUMENTS - len(arguments))
        self._input.write(name.encode().ljust(64, b"\0") + struct.pack(f"={_ARGUMENTS}q", *numbers))
        self._input.flush()
        sent = dict[int, bytes]()
        while page := self._read_number():
            sent[page] = ctypes.string_at(page, _PAGE)
            self._input.write(sent[page])
            self._input.flush()
        result, num_pages = self._read_number(), self._read_number()
        for _ in range(num_pages):
            page = self._read_number()
            _write_changes(page, sent[page], self._output.read(_PAGE))
        return result

    def _read_number(self) -> int:
        (number,) = struct.unpack("=q", self._output.read(8))
        return number

    def _overlaps(self) -> bool:
        """Whether memory of the emulator lies where this process has some, which the emulated program would read."""
        own = list(_mapped("self"))
        return any(
            begin < other_end + _SPACING and other < end + _SPACING
            for begin, end in _mapped(str(self._process.pid))
            for other, other_end in own
        )


def _number(argument: Any) -> int:
    """An integer, or the address that a pointer has."""
    if argument is None or isinstance(argument, int):
        return argument or 0
    return addressof(argument.contents) if argument else 0


def _mapped(process: str) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if not line.endswith("[vsyscall]"):
            yield begin, end


def _write_changes(page: int, before: bytes, after: bytes) -> None:
    """Writes nothing but what the call has changed: meanwhile this process may have changed what lies beside it."""
    changed = np.frombuffer(after, np.uint8)
    places = np.flatnonzero(changed != np.frombuffer(before, np.uint8))
    np.ctypeslib.as_array((ctypes.c_uint8 * _PAGE).from_address(page))[places] = changed[places]


@cache
def _build(sources: Sources) -> Path:
    """Returns the library for ARM, compiled now unless it is cached."""
    # Less optimized than elsewhere, in half the time; products are fused with sums as they are elsewhere.
    flags = (*sources.flags, "-O1", "-fexpensive-optimizations")
    own = replace(sources, name=f"{sources.name}-arm", flags=flags, variable="GLIMPSE_NO_VARIABLE")
    with patch.dict(os.environ, CXX=COMPILER), patch("platform.machine", lambda: "aarch64"):
        return build_library(own, lambda _stage: None)


@contextmanager
def start(cpu: str, sources: Sources, functions: Iterable[Function]) -> Generator[CDLL]:
    """Yields a library for ARM.

    Args:
        cpu: the processor, as QEMU names it.
        functions: the library's functions.
    """
    path = _build(sources)
    with TemporaryDirectory() as folder:
        program, source = Path(folder) / "emulated", Path(__file__).with_name("emulated.cpp")
        subprocess.run([COMPILER, "-O1", str(source), "-o", str(program)], check=True)
        with closing(EmulatedLibrary(path, program, cpu, functions)) as emulated:
            yield cast(CDLL, emulated)
