"""Takes long strings out of a JSON document before it is parsed, and puts them back into the values.

The parser works in a single call, in which no other thread runs: with 60 MB of base64 in a string for 0.2 s. What is
left of such a document is small. A string is only taken out if its text is its value: ASCII without escapes.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MIN_BYTES = 256 << 10
"""Shorter strings stay."""

_FIRST_PRINTABLE = 0x20
_FIRST_NOT_ASCII = 0x80
_NONCE = secrets.token_hex(16)
"""Begins the strings that stand for the ones taken out. Unknown to clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """A document without its long strings."""

    document: bytes
    """Each long string is replaced by a short one."""
    strings: dict[str, str] = field(default_factory=dict[str, str])
    """The short string → the long one."""
    places: tuple[tuple[int, int], ...] = ()
    """For each, where the short string begins in `document`, and by how many bytes the long one is longer."""

    def restored(self, value: Any) -> Any:
        """Returns a parsed value with its long strings, but does not look at names; changes lists and objects."""
        if not self.strings:
            return value
        holder = [value]
        containers: list[Any] = [holder]
        while containers:  # no recursion, which would limit nesting more than the parser does
            container = containers.pop()
            for key, member in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(member, str):
                    container[key] = self.strings.get(member, member)
                elif isinstance(member, dict | list):
                    containers.append(member)
        return holder[0]

    def restored_text(self, text: str) -> str:
        """Returns JSON text from `document` as it was."""
        for short, string in self.strings.items():
            text = text.replace(short, string)
        return text

    def original_byte(self, position: int) -> int:
        """Returns where a byte of `document` was."""
        return position + sum(more for place, more in self.places if place < position)

    def original_column(self, position: int) -> int:
        """Returns the column of a character of `document`, from 1, before strings were taken out."""
        text = self.document.decode()
        line = text.rfind("\n", 0, position) + 1
        places = ((len(self.document[:place].decode()), more) for place, more in self.places)
        return position - line + 1 + sum(more for place, more in places if line <= place < position)


def shorten(document: bytes) -> Shortened:
    """Takes long strings out of a document, which need not be valid."""
    pieces: list[bytes] = []
    strings: dict[str, str] = {}
    places: list[tuple[int, int]] = []
    kept = num_bytes = 0
    for start, end in _find(document):
        short = f"{_NONCE}{len(strings):08}"
        strings[short] = str(memoryview(document)[start:end], "ascii")
        num_bytes += start - kept
        places.append((num_bytes, end - start - len(short)))
        num_bytes += len(short)
        pieces += document[kept:start], short.encode()
        kept = end
    if not strings:
        return Shortened(document=document)
    pieces.append(document[kept:])
    return Shortened(document=b"".join(pieces), strings=strings, places=tuple(places))


def _find(document: bytes) -> list[tuple[int, int]]:
    """Returns where long strings begin and end, without their quotes. Looks at few quotes if strings are long."""
    found: list[tuple[int, int]] = []
    position = 0
    is_inside = opens = False  # whether `position` is in a string, and is its first character
    while (limit := position + MIN_BYTES) < len(document):
        quote = document.rfind(b'"', position, limit)
        if quote >= 0:
            opens = not _is_inside(document[position:quote], is_inside=is_inside)
            is_inside = _is_inside(document[position : quote + 1], is_inside=is_inside)
            position = quote + 1
        # No quotes are between `position` and `end`.
        end = document.find(b'"', limit)
        if end < 0:
            break
        if not is_inside:
            is_inside = opens = True
        elif opens and _is_plain(document, position, end):
            found.append((position, end))
            is_inside = opens = False
        else:
            is_inside, opens = _is_escaped(document[position:end]), False
        position = end + 1
    return found


def _is_inside(text: bytes, *, is_inside: bool) -> bool:
    """Returns whether a string is open after some text; `is_inside` says whether one was before it."""
    text = text.replace(rb"\\", b"")
    num_quotes = text.count(b'"') - text.count(rb"\"")
    return is_inside ^ bool(num_quotes % 2)


def _is_escaped(text: bytes) -> bool:
    """Returns whether a character is escaped that follows this text in a string."""
    return bool((len(text) - len(text.rstrip(b"\\"))) % 2)


def _is_plain(document: bytes, start: int, end: int) -> bool:
    if end - start < MIN_BYTES or document.find(b"\\", start, end) >= 0:
        return False
    characters = np.frombuffer(document, np.uint8, end - start, start)
    return bool(characters.min() >= _FIRST_PRINTABLE and characters.max() < _FIRST_NOT_ASCII)
