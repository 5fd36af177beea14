"""Writes PNG files of pixels in memory. Needs neither Pillow nor NumPy, which take longer to import."""

import struct
import zlib
from collections.abc import Iterable

GREY, RGB, RGBA = 0, 2, 6
"""Types of colour, of 8 bits for each channel."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_png(rows: Iterable[bytes], *, width: int, height: int, colour_type: int) -> bytes:
    """Returns an image as PNG, without filters. `rows` has `height` rows of `width` pixels."""
    header = struct.pack(">2I5B", width, height, 8, colour_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
