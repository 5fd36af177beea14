"""What an MP4 or QuickTime file says of itself, read before a demuxer does: nothing in it is trusted to be small.

A demuxer makes an entry in memory for each sample that a table claims, and a table may claim billions in a few bytes.
Knows the boxes' framing and three of them; what they mean is the demuxer's affair.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from glimpse.media.errors import MediaError, MediaErrorCode

MAX_SAMPLES = 1_000_000
"""The most that all tables of pictures may claim together: some 60 MB of a demuxer's memory."""

# Each has the number of its samples 8 or 4 bytes after its name.
_COUNTS = ((b"stsz", 8), (b"stz2", 8), (b"trun", 4))
_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    kind: bytes
    start: int
    """Of its header."""
    body: int
    end: int


def checked_mp4(data: bytes, *, hidden_kind: bytes = b"soun") -> BytesIO:
    """The file, its tracks of one kind hidden, if a demuxer may open it.

    Whoever wants pictures does not listen, and uncompressed sound rightly has more samples than pictures may.

    Args:
        data: the file.
        hidden_kind: a handler's type, such as "soun" and "vide".

    Raises:
        MediaError: TOO_LARGE if it claims too many samples; UNSUPPORTED_FORMAT if its index is compressed.
    """
    movies = [box for box in _boxes(data, 0, len(data)) if box.kind == b"moov"]
    hidden = [track for movie in movies for track in _tracks(data, movie, hidden_kind)]
    claimed = sum(_claimed_samples(data, start, end) for start, end in _index_parts(data, hidden))
    if claimed > MAX_SAMPLES:
        what = "frames" if hidden_kind == b"soun" else "samples"
        message = f"the file claims to have {claimed} {what}; at most {MAX_SAMPLES} are looked through"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    file = BytesIO(data)
    for track in hidden:
        file.seek(track.start + 4)
        file.write(b"free")
    file.seek(0)
    return file


def _boxes(data: bytes, start: int, end: int) -> Iterator[_Box]:
    """Boxes one after another; what is not framed as one is given as a last box without a kind."""
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
    """Everything in which tables may stand: all but the media data themselves and the hidden tracks."""
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
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, "this is a clip with a compressed index, which is not read")
    return sum(
        int.from_bytes(data[found + 4 + offset : found + 8 + offset], "big")
        for name, offset in _COUNTS
        for found in _places(data, name, start, end)
    )


def _places(data: bytes, name: bytes, start: int, end: int) -> Iterator[int]:
    found = data.find(name, start, end)
    while found >= 0:
        yield found
        found = data.find(name, found + 1, end)
