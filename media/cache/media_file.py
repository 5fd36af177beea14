"""Files of media, and what client uuids refer to."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_INLINE_HASH_BYTES = 1 << 18
"""Larger files are hashed in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """A file and its hash."""

    digest: bytes
    """SHA-256."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMedia:
    """Files that a uuid refers to."""

    files: Mapping[int, bytes]
    """File hashes by index: index 0 for a single file, or the sampled frame indices for a list of frames."""
    num_frames: int | None
    """Length of the list of frames; None for a single file."""
    url_digest: bytes | None
    """`text_digest` of the URL that the file was fetched from, if any."""


async def file_digest(data: bytes) -> bytes:
    """Returns the SHA-256 of a file, computed in a thread if the file is large."""
    if len(data) <= _INLINE_HASH_BYTES:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()


def text_digest(text: str) -> bytes:
    """Returns the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).digest()
