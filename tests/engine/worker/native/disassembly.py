"""The functions of a compiled library, by the source file that they come from."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_INSTRUCTION = re.compile(r"^ +([0-9a-f]+):\t(.+)$")
_JUMP = re.compile(r"^j\w+ +([0-9a-f]+) <")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    file: str
    """Source file, such as "linear.cpp"; empty for functions that several files may define."""
    name: str
    instructions: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """(address, text in AT&T's syntax), in the order of addresses."""

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.instructions)

    def innermost_loops(self) -> Iterator[list[str]]:
        """Yields the instructions between each jump backwards and its target, if no other such jump is among them."""
        jumps = [
            (int(match.group(1), 16), address)
            for address, text in self.instructions
            if (match := _JUMP.match(text)) and int(match.group(1), 16) <= address
        ]
        for first, last in jumps:
            if not any(first <= other < last for _, other in jumps):
                yield [text for address, text in self.instructions if first <= address <= last]


def functions(library: Path) -> list[Function]:
    files = _files(library)
    found: list[Function] = []
    for line in _objdump("--disassemble", "--no-show-raw-insn", "--wide", "--section=.text", str(library)):
        if match := _FUNCTION.match(line):
            found.append(Function(file=files.get(int(match.group(1), 16), ""), name=match.group(2)))
        elif match := _INSTRUCTION.match(line):
            found[-1].instructions.append((int(match.group(1), 16), match.group(2).split("#")[0].strip()))
    return found


def _files(library: Path) -> dict[int, str]:
    """Returns the source files of functions that only one file knows, by their addresses.

    The symbol table lists a file's name and then its own symbols; symbols that files share come last.
    """
    files: dict[int, str] = {}
    file = ""
    for line in _objdump("--syms", str(library)):
        words = line.split()
        if "*ABS*" in words and "df" in words:
            file = words[-1] if words[-1].endswith(".cpp") else ""
        elif ".text" in words and words[1].startswith("l"):
            files[int(words[0], 16)] = file
    return files


def _objdump(*arguments: str) -> list[str]:
    done = subprocess.run(["objdump", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
