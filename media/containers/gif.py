"""Sizes of a GIF's frames. Pillow fills a frame outside of the canvas, with up to 4 GB, as it opens the file.

Follows the blocks of the GIF89a specification.
"""

from collections.abc import Iterator
from struct import unpack_from

from glimpse.media.errors import MediaError, MediaErrorCode

_HEADER_BYTES = 13
_DESCRIPTOR_BYTES = 10


def check_frames(data: bytes, max_pixels: int) -> None:
    """Raises MediaError: TOO_LARGE if a frame reaches so far that the canvas around it has more than `max_pixels`."""
    for width, height in _extents(data):
        if width * height > max_pixels:
            message = f"expected an image of at most {max_pixels} pixels, got {width}×{height}"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)


def _extents(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields how far each frame reaches to the right and down. Ends where the file is cut or corrupt."""
    if len(data) < _HEADER_BYTES:
        return
    place = _HEADER_BYTES + _table_bytes(data[10])
    while place + _DESCRIPTOR_BYTES <= len(data):
        match data[place : place + 1]:
            case b"!":
                place = _end_of_blocks(data, place + 2)
            case b",":
                left, top, width, height, flags = unpack_from("<HHHHB", data, place + 1)
                yield left + width, top + height
                place = _end_of_blocks(data, place + _DESCRIPTOR_BYTES + _table_bytes(flags) + 1)
            case _:
                place += 1  # as Pillow does


def _table_bytes(flags: int) -> int:
    """Returns the size of a table of colours; 0: there is none."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _end_of_blocks(data: bytes, place: int) -> int:
    """Returns the place after a chain of blocks, each with its size before it, and an empty one."""
    while place < len(data) and (size := data[place]):
        place += 1 + size
    return place + 1
