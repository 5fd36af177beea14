"""Prints an answer while it is generated."""

import json
import shutil
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len

from glimpse.client import Chunk

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
"""Characters that command a terminal."""


class IncompleteError(Exception):
    """The answer is not the JSON that was asked for."""


class _Screen:
    """Writes a text in pieces. On a terminal, lines break between words, and nothing in the text commands it."""

    def __init__(self, file: TextIO, *, markdown: bool = False) -> None:
        self._file = file
        self._column = 0
        self._word = ""  # the beginning of the last word, in this line
        self._line = ""
        self._rows = 0  # below the first one of the block
        self._blocks = None
        if markdown and file.isatty():
            from glimpse.server.cli.chat.markdown import BlockRenderer  # noqa: PLC0415 - a pipe needs no renderer

            self._blocks = BlockRenderer(file)

    def write(self, text: str) -> None:
        if not self._file.isatty():
            print(text, end="", flush=True, file=self._file)
            return
        for line in text.translate(_CONTROLS).expandtabs(4).splitlines(keepends=True):
            # The last column stays free: a cursor beyond it would go back by one less.
            width = shutil.get_terminal_size().columns - 1
            placed = "".join(self._placed(char, width) for char in line)
            print(placed, end="", flush=True, file=self._file)
            self._rows += placed.count("\n")
            self._line += line
            if self._line.endswith("\n"):
                self._end_line()

    def end(self) -> None:
        """Ends the text, and its last line."""
        if self._line or not self._file.isatty():
            self.write("\n")
        if self._blocks is not None:
            self._blocks.end(self._rows)

    def _end_line(self) -> None:
        if self._blocks is not None and self._blocks.add(self._line, self._rows):
            self._rows = 0
        self._line = ""

    def _placed(self, char: str, width: int) -> str:
        """Returns the character, after what begins another line if it does not fit."""
        cells, before = cell_len(char), ""
        if char == "\n" or (char == " " and self._column + cells > width):
            self._column, self._word = 0, ""
            return "\n"
        if self._column + cells > width:
            before = self._break()
        self._column += cells
        self._word = self._word + char if cells == 1 and char != " " else ""
        return before + char

    def _break(self) -> str:
        """Begins another line, with the beginning of the last word unless that fills this line."""
        word, moved = self._word, len(self._word)
        if not 0 < moved < self._column:
            self._column, self._word = 0, ""
            return "\n"
        self._column = moved
        return f"\x1b[{moved}D\x1b[K\n{word}"


def print_answer(chunks: Iterable[Chunk], written: list[str] | None = None, *, markdown: bool = False) -> Chunk | None:
    """Prints the text to standard output and what the model reasons before it to standard error.

    Args:
        written: gets the pieces of the text, for callers whose user interrupts the answer.
        markdown: render the text as Markdown, on a terminal.

    Returns:
        the last chunk, which has the usage.
    """
    is_reasoning, chunk = False, None
    output, errors = _Screen(sys.stdout, markdown=markdown), _Screen(sys.stderr)
    written = [] if written is None else written
    try:
        for chunk in chunks:
            if chunk.reasoning:
                is_reasoning = True
                errors.write(chunk.reasoning)
            if chunk.text and is_reasoning:
                is_reasoning = False
                errors.write("\n\n")
            written.append(chunk.text)
            output.write(chunk.text)
    finally:
        if any(written):
            output.end()
    return chunk


def print_json(chunks: Iterable[Chunk]) -> None:
    """Prints an answer in JSON once it is complete. Raises IncompleteError if it is cut."""
    pieces: list[str] = []
    reason = None
    for chunk in chunks:
        pieces.append(chunk.text)
        reason = chunk.finish_reason or reason
    text = "".join(pieces)
    try:
        json.loads(text)
    except ValueError:
        why = "; it reached the limit of its tokens: raise --max-tokens" if reason == "length" else ""
        raise IncompleteError(f"the answer is no complete JSON{why}") from None
    print(text.strip())
