"""How a vocabulary spells the bytes of its tokens: byte-level BPE, or BPE in SentencePiece's way."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Spelling: TypeAlias = Callable[[str], bytes]
"""Returns the bytes that a token of the vocabulary stands for."""

SPACE = "▁"
"""Spells a space in SentencePiece's vocabularies (U+2581)."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _byte_characters() -> dict[int, int]:
    """Returns code point → byte of the alphabet in which byte-level BPE spells tokens.

    The alphabet (GPT-2's `bytes_to_unicode`) keeps the printable bytes of Latin-1 and maps the others, in ascending
    order, to the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()


def byte_level(token: str) -> bytes:
    """A character of the alphabet for each byte."""
    try:
        return bytes(_BYTE_OF_CHARACTER[ord(character)] for character in token)
    except KeyError:  # not spelled in the alphabet: some vocabularies contain special tokens not declared as such
        return token.encode()


def sentencepiece(token: str) -> bytes:
    """Text with `SPACE` for spaces; bytes of characters that the vocabulary lacks are tokens such as `<0x0A>`."""
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()


def spelling_of(document: Mapping[str, Any]) -> Spelling | None:
    """Returns the spelling of a `tokenizer.json`, as its decoder tells; None if it is neither of the two."""
    decoder: Mapping[str, Any] = document.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds and document.get("pre_tokenizer") is not None:
        return byte_level
    spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return sentencepiece if "ByteFallback" in kinds and spaces in steps else None


def removes_first_space(document: Mapping[str, Any]) -> bool:
    """Returns whether a whole text is decoded without the space that encoding puts before its first word."""
    steps = (document.get("decoder") or {}).get("decoders", ())
    return any(step.get("type") == "Strip" and step.get("content") == " " and step.get("start") for step in steps)
