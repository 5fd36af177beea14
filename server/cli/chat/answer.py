"""Prints an answer while it is generated."""

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from glimpse.client import Chunk

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
"""Characters that command a terminal."""


class IncompleteError(Exception):
    """The answer is not the JSON that was asked for."""


def print_answer(chunks: Iterable[Chunk], written: list[str] | None = None) -> Chunk | None:
    """Prints the text to standard output and what the model reasons before it to standard error.

    Args:
        chunks: the answer.
        written: gets the pieces of the text, for callers whose user interrupts the answer.

    Returns:
        the last chunk, which has the usage.
    """
    is_reasoning, chunk = False, None
    for chunk in chunks:
        if chunk.reasoning:
            is_reasoning = True
            _write(chunk.reasoning, sys.stderr)
        if chunk.text and is_reasoning:
            is_reasoning = False
            _write("\n\n", sys.stderr)
        if written is not None:
            written.append(chunk.text)
        _write(chunk.text, sys.stdout)
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


def _write(text: str, file: TextIO) -> None:
    print(text.translate(_CONTROLS) if file.isatty() else text, end="", flush=True, file=file)
