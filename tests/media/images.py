"""Synthetic images for tests, and files of them."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image


def scene(width: int, height: int, seed: int = 0) -> PIL.Image.Image:
    """Returns gradients, an edge and seeded noise; all rows, columns and channels differ."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    channels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=-1)
    channels[(x > width // 3) & (y > height // 2)] = (250, 20, 90)
    return PIL.Image.fromarray(((channels + random.integers(0, 40, channels.shape)) % 256).astype(np.uint8))


def noise_pixels(height: int, width: int, seed: int) -> npt.NDArray[np.uint8]:
    """Returns [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode(image: PIL.Image.Image, file_format: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def animation(frames: npt.NDArray[np.uint8], file_format: str, *, milliseconds: int = 100, **options: Any) -> bytes:
    """Returns an animated image of frames [frames, height, width, 3], each shown for so long."""
    first, *others = (PIL.Image.fromarray(frame) for frame in frames)
    options |= {} if file_format in ("GIF", "PNG") else {"lossless": True} if file_format == "WEBP" else {"quality": 90}
    return encode(first, file_format, save_all=True, append_images=others, duration=milliseconds, **options)


def tall_jpeg(strip: PIL.Image.Image, num_strips: int) -> bytes:
    """Returns a JPEG of a strip that is repeated downwards, made without the memory for its pixels."""
    data = encode(strip, "JPEG", restart_marker_rows=1)
    scan = data.index(b"\xff\xda")
    start = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    head = bytearray(data[:start])
    place = head.index(b"\xff\xc0") + 5
    head[place : place + 2] = struct.pack(">H", strip.height * num_strips)
    restarts = (bytes([0xFF, 0xD0 + index % 8]) for index in range(num_strips - 1))
    return bytes(head) + data[start:-2] + b"".join(each + data[start:-2] for each in restarts) + data[-2:]


def png_header(width: int, height: int) -> bytes:
    """Returns a small PNG whose header claims these dimensions, without pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(b""))
        + png_chunk(b"IEND", b"")
    )


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
