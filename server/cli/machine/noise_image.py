"""Images of random pixels: none is like another, so that no cache answers for the model."""

import random
import struct
import zlib


def noise_png(draw: random.Random, side: int) -> bytes:
    """Returns a square RGB image as PNG. Pillow is not needed for that, and takes longer to import."""
    rows = b"".join(b"\0" + draw.randbytes(3 * side) for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
