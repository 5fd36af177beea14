"""Limits on the sample tables of MP4 and QuickTime files, checked before a demuxer reads the file.

A demuxer allocates an entry for each sample that a table claims, and a table can claim billions in a few bytes. Parses
the framing of boxes and the sample counts of three box types only.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from glimpse.media.errors import MediaError, MediaErrorCode

MAX_SAMPLES = 1_000_000
"""Limit on the samples that all visible tables claim together: about 60 MB of a demuxer's memory."""

# Box types, and the offset of the sample count from the end of the type.
_COUNTS = ((b"stsz", 8), (b"stz2", 8), (b"trun", 4))
_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    kind: bytes
    start: int
    body: int
    end: int


def checked_mp4(data: bytes, *, hidden_kind: bytes = b"soun") -> BytesIO:
    """Returns the file for a demuxer, with the tracks of one kind hidden.

    Video decoding does not need audio tracks, and uncompressed audio legitimately has more samples than the limit.

    Args:
        hidden_kind: Handler type of the tracks to hide: "soun" or "vide".

    Raises:
        MediaError: TOO_LARGE if the file claims too many samples; UNSUPPORTED_FORMAT if its index is compressed.
    """
    movies = [box for box in _boxes(data, 0, len(data)) if box.kind == b"moov"]
    hidden = [track for movie in movies for track in _tracks(data, movie, hidden_kind)]
    claimed = sum(_claimed_samples(data, start, end) for start, end in _index_parts(data, hidden))
    if claimed > MAX_SAMPLES:
        what = "frames" if hidden_kind == b"soun" else "samples"
        message = f"expected a file of at most {MAX_SAMPLES} {what}, got one that claims {claimed}"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    file = BytesIO(data)
    for track in hidden:
        file.seek(track.start + 4)
        file.write(b"free")
    file.seek(0)
    return file


def _boxes(data: bytes, start: int, end: int) -> Iterator[_Box]:
    """Yields consecutive boxes. A malformed rest is yielded as a last box without a kind."""
    while end - start >= _HEADER_BYTES:
        size, kind = struct.unpack_from(">I4s", data, start)
        body = start + _HEADER_BYTES
        if size == 1 and end - start >= 2 * _HEADER_BYTES:
            (size,) = struct.unpack_from(">Q", data, body)
            body += _HEADER_BYTES
        elif size == 0:
            size = end - start
        if size < body - start:
            yield _Box(kind=b"", start=start, body=start, end=end)
            return
        yield _Box(kind=kind, start=start, body=body, end=min(start + size, end))
        start += size


def _tracks(data: bytes, movie: _Box, kind: bytes) -> Iterator[_Box]:
    for track in _boxes(data, movie.body, movie.end):
        handler = data.find(b"hdlr", track.body, track.end) if track.kind == b"trak" else -1
        if handler >= 0 and data[handler + 12 : handler + 16] == kind:
            yield track


def _index_parts(data: bytes, hidden: list[_Box]) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of everything that may contain tables: all except the media data and the hidden tracks."""
    for box in _boxes(data, 0, len(data)):
        if box.kind == b"mdat":
            continue
        start = box.start
        for track in hidden:
            if box.start <= track.start < box.end:
                yield start, track.start
                start = track.end
        yield start, box.end


def _claimed_samples(data: bytes, start: int, end: int) -> int:
    if data.find(b"cmov", start, end) >= 0:
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, "expected an MP4 file with an uncompressed index")
    return sum(
        int.from_bytes(data[found + 4 + offset : found + 8 + offset], "big")
        for name, offset in _COUNTS
        for found in _occurrences(data, name, start, end)
    )


def _occurrences(data: bytes, name: bytes, start: int, end: int) -> Iterator[int]:
    found = data.find(name, start, end)
    while found >= 0:
        yield found
        found = data.find(name, found + 1, end)
