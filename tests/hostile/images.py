"""Image files that a stranger might send, made by code, and what becomes of each: a table."""

import struct
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
import PIL.Image
from PIL.PngImagePlugin import PngInfo

from glimpse.media.errors import MediaErrorCode
from tests.media.images import encode, png_header, scene

DAMAGED = MediaErrorCode.INVALID_MEDIA
TOO_LARGE = MediaErrorCode.TOO_LARGE
UNSUPPORTED = MediaErrorCode.UNSUPPORTED_FORMAT

Make = Callable[[], bytes]

_SCENE = scene(60, 40)
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(*chunks: bytes, width: int = 8, height: int = 8, depth: int = 8, colour: int = 2) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + _chunk(b"IEND", b"")


def _zeros(num_bytes: int) -> bytes:
    """That many zero bytes, compressed a thousandfold."""
    return zlib.compress(bytes(num_bytes), 9)


def _png_with(kind: bytes, body: bytes) -> bytes:
    """A good image with one more chunk before its pixels."""
    data = encode(_SCENE, "PNG")
    place = data.index(b"IDAT") - 4
    return data[:place] + _chunk(kind, body) + data[place:]


def _text_bomb() -> bytes:
    return _png_with(b"zTXt", b"Comment\0\0" + _zeros(200 << 20))


def _profile_bomb() -> bytes:
    return _png_with(b"iCCP", b"bomb\0\0" + _zeros(200 << 20))


def _pixels_beyond_the_header() -> bytes:
    return _png(_chunk(b"IDAT", _zeros(200 << 20)))


def _jpeg_of(width: int, height: int) -> bytes:
    data = bytearray(encode(_SCENE, "JPEG"))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def _jpeg_of_many_scans() -> bytes:
    """A progressive image whose last scan comes a thousand times."""
    data = encode(scene(200, 200), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    return data[:start] + data[start:-2] * 1000 + data[-2:]


def _gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + encode(_SCENE, "GIF")[10:]


def _webp(width: int, height: int) -> bytes:
    """Small moving images in a canvas of this size."""
    data = bytearray(_animated("WEBP"))
    place = data.index(b"VP8X") + 12
    data[place : place + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def _bmp(width: int, height: int, compression: int = 0, body: bytes = b"") -> bytes:
    bits = 8 if compression else 24
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 0, 0, 256 if bits == 8 else 0, 0)
    palette = bytes(1024) if bits == 8 else b""
    offset = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + header + palette + body


def _tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    """Little-endian, with one directory of (tag, type, count, value)."""
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", following)


def _tiff_of(width: int, height: int, *, strip_at: int = 8, strip_bytes: int = 64, following: int = 0) -> bytes:
    return _tiff(
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, strip_at),
        (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, strip_bytes), following=following,
    )  # fmt: skip


def _animated(file_format: str) -> bytes:
    frames = [scene(40, 40, seed) for seed in range(5)]
    return encode(frames[0], file_format, save_all=True, append_images=frames[1:], duration=20)


def _thousand_frames() -> bytes:
    data = encode(_SCENE, "GIF")
    # Everything between the palette and the end is one frame.
    start = 13 + 3 * 2 ** ((data[10] & 7) + 1)
    return data[:start] + data[start:-1] * 1000 + data[-1:]


def _with_exif(exif: bytes, file_format: str = "JPEG") -> bytes:
    return encode(_SCENE, file_format, exif=exif)


def _orientation(value: int) -> bytes:
    exif = PIL.Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()


def _palette_with_transparency() -> PIL.Image.Image:
    palette = _SCENE.quantize(16)
    palette.info["transparency"] = bytes(range(0, 256, 16))
    return palette


def _sixteen_bit(mode: str) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.linspace(0, 65535, 60 * 40).reshape(40, 60).astype(np.uint16)).convert(mode)


def _cut(file_format: str, share: float) -> bytes:
    # Of noise: an image that is cut in two then lacks its half.
    noise = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    data = encode(noise, file_format)
    return data[: int(len(data) * share)]


def _commented(comment: bytes) -> bytes:
    return encode(_SCENE, "JPEG", comment=comment)


def _with_text() -> bytes:
    info = PngInfo()
    info.add_text("Comment", "<script>alert(1)</script>")
    return encode(_SCENE, "PNG", pnginfo=info)


_BOMBS: dict[str, tuple[Make, MediaErrorCode | None]] = {
    "PNG of 400 million pixels": (lambda: png_header(20_000, 20_000), TOO_LARGE),
    "PNG of the most pixels there can be": (lambda: png_header(2**31 - 1, 2**31 - 1), TOO_LARGE),
    "PNG with a comment of 200 MB": (_text_bomb, DAMAGED),
    "PNG with a profile of 200 MB": (_profile_bomb, DAMAGED),
    "PNG with 200 MB of pixels where 192 bytes belong": (_pixels_beyond_the_header, None),
    "PNG of 60 million black pixels": (
        lambda: _png(_chunk(b"IDAT", _zeros(8001 * 7500)), width=8000, height=7500, colour=0),
        None,
    ),
    "JPEG of 4 billion pixels": (lambda: _jpeg_of(65_535, 65_535), TOO_LARGE),
    "JPEG of more pixels than it has": (lambda: _jpeg_of(1000, 1000), None),
    "JPEG of a thousand scans": (_jpeg_of_many_scans, None),
    "GIF of 4 billion pixels": (lambda: _gif(65_535, 65_535), TOO_LARGE),
    "GIF of a thousand frames": (_thousand_frames, None),
    "WebP of 256 million pixels": (lambda: _webp(16_000, 16_000), TOO_LARGE),
    "BMP of 10 billion pixels": (lambda: _bmp(100_000, 100_000), TOO_LARGE),
    "BMP upside down": (lambda: _bmp(100_000, -100_000), TOO_LARGE),
    "BMP of negative width": (lambda: _bmp(-8, 8, body=bytes(200)), TOO_LARGE),
    "BMP whose runs do not end": (lambda: _bmp(64, 64, compression=1, body=b"\xff\x01" * 10_000), DAMAGED),
    "TIFF of 10 billion pixels": (lambda: _tiff_of(100_000, 100_000), TOO_LARGE),
    "TIFF with pixels beyond its end": (lambda: _tiff_of(8, 8, strip_at=2**31), DAMAGED),
    "TIFF whose pages come round": (lambda: _tiff_of(8, 8, following=8), None),
    "TIFF that claims 4 billion values": (lambda: _tiff((256, 4, 2**32 - 1, 8), (257, 4, 1, 8)), DAMAGED),
}
_SHAPES: dict[str, tuple[Make, MediaErrorCode | None]] = {
    "1×1": (lambda: encode(scene(1, 1), "PNG"), None),
    "1×200": (lambda: encode(scene(1, 200), "PNG"), None),
    "10000:1": (lambda: encode(scene(10_000, 1), "PNG"), DAMAGED),
    "1:10000": (lambda: encode(scene(1, 10_000), "PNG"), DAMAGED),
    "0×0": (lambda: png_header(0, 0), DAMAGED),
    "0×8": (lambda: png_header(0, 8), DAMAGED),
}
_COLOURS: dict[str, tuple[Make, MediaErrorCode | None]] = {
    "CMYK JPEG": (lambda: encode(_SCENE.convert("CMYK"), "JPEG"), None),
    "CMYK TIFF": (lambda: encode(_SCENE.convert("CMYK"), "TIFF"), None),
    "16-bit PNG": (lambda: encode(_sixteen_bit("I;16"), "PNG"), None),
    "16-bit TIFF": (lambda: encode(_sixteen_bit("I;16"), "TIFF"), None),
    "16-bit colours": (
        lambda: _png(_chunk(b"IDAT", zlib.compress((b"\0" + bytes(48)) * 8)), depth=16),
        None,
    ),
    "palette with transparency": (lambda: encode(_palette_with_transparency(), "PNG"), None),
    "GIF with transparency": (lambda: encode(_SCENE.quantize(8), "GIF", transparency=3), None),
    "grey with transparency": (lambda: encode(_SCENE.convert("LA"), "PNG"), None),
    "one bit": (lambda: encode(_SCENE.convert("1"), "TIFF"), None),
    "palette that lacks colours": (
        lambda: _png(_chunk(b"PLTE", bytes(3)), _chunk(b"IDAT", zlib.compress((b"\0" + b"\xff" * 8) * 8)), colour=3),
        None,
    ),
    "floats": (lambda: encode(_SCENE.convert("F"), "TIFF"), UNSUPPORTED),
    "32-bit integers": (lambda: encode(_SCENE.convert("I"), "TIFF"), UNSUPPORTED),
    "L*a*b*": (lambda: encode(PIL.Image.new("LAB", (8, 8)), "TIFF"), UNSUPPORTED),
}
_ADDITIONS: dict[str, tuple[Make, MediaErrorCode | None]] = {
    "animated GIF": (lambda: _animated("GIF"), None),
    "animated PNG": (lambda: _animated("PNG"), None),
    "animated WebP": (lambda: _animated("WEBP"), None),
    "EXIF of nonsense": (lambda: _with_exif(b"Exif\0\0" + b"\xff" * 200), None),
    "EXIF that leads beyond its end": (lambda: _with_exif(b"Exif\0\0II*\0\xff\xff\xff\x7f"), None),
    "EXIF that comes round": (lambda: _with_exif(b"Exif\0\0" + _tiff((0x8769, 4, 1, 8), following=8)), None),
    "EXIF of a WebP, cut short": (lambda: _with_exif(b"Exif\0\0II*\0", "WEBP"), None),
    "orientation 9": (lambda: _with_exif(_orientation(9)), None),
    "a profile of nonsense": (lambda: encode(_SCENE, "JPEG", icc_profile=b"\xff" * 500), None),
    "a script as a comment": (_with_text, None),
    "a PHP program as a comment": (lambda: _commented(b"<?php system($_GET['c']); ?>"), None),
    "a PNG and an archive": (lambda: encode(_SCENE, "PNG") + b"PK\x03\x04" + bytes(100), None),
    "a JPEG and a page": (lambda: encode(_SCENE, "JPEG") + b"<html><script>alert(1)</script></html>", None),
}
_OTHERS: dict[str, tuple[Make, MediaErrorCode | None]] = {
    "GIF and JavaScript": (lambda: b"GIF89a/*" + bytes(20) + b"*/=1;alert(1)", DAMAGED),
    "a page": (lambda: b"<!DOCTYPE html><img src='file:///etc/passwd'>", UNSUPPORTED),
    "a drawing that reads files": (lambda: b'<svg xmlns="x"><image href="file:///etc/passwd"/></svg>', UNSUPPORTED),
    "a document with an entity": (
        lambda: b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        UNSUPPORTED,
    ),
    "a PDF with an image": (lambda: b"%PDF-1.7\n" + encode(_SCENE, "JPEG"), UNSUPPORTED),
    "PostScript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file", UNSUPPORTED),
    "ImageMagick's own": (lambda: b"push graphic-context\nfill 'url(https://127.0.0.1/\"|ls \")'\n", UNSUPPORTED),
    "an icon": (lambda: encode(scene(32, 32), "ICO"), UNSUPPORTED),
    "a Photoshop file": (lambda: b"8BPS\0\1" + bytes(100), UNSUPPORTED),
    "a HEIC image": (lambda: b"\0\0\0\x18ftypheic" + bytes(100), UNSUPPORTED),
    "an AVIF image": (lambda: b"\0\0\0\x18ftypavif" + bytes(100), UNSUPPORTED),
    "JPEG 2000": (lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100), UNSUPPORTED),
    "an archive": (lambda: b"PK\x03\x04" + bytes(100), UNSUPPORTED),
    "a program": (lambda: b"\x7fELF\x02\x01\x01" + bytes(100), UNSUPPORTED),
    "a playlist": (lambda: b"#EXTM3U\nfile:///etc/passwd\n", UNSUPPORTED),
    "noise": (lambda: np.random.default_rng(1).bytes(5000), UNSUPPORTED),
    "zeros": (lambda: bytes(5000), UNSUPPORTED),
    "one byte": (lambda: b"\xff", UNSUPPORTED),
    "a chunk of two gigabytes": (lambda: encode(_SCENE, "PNG")[:33] + b"\x7f\xff\xff\xffIDATxx", DAMAGED),
    "a wrong checksum": (lambda: encode(_SCENE, "PNG").replace(b"IDAT", b"IDAT\x01", 1), DAMAGED),
    "no pixels": (lambda: png_header(8, 8), DAMAGED),
}


@cache
def hostile_images() -> dict[str, tuple[bytes, MediaErrorCode | None]]:
    """All of them, by what they are; None: it is an image after all."""
    table = _BOMBS | _SHAPES | _COLOURS | _ADDITIONS | _OTHERS
    files = {name: (make(), code) for name, (make, code) in table.items()}
    files |= {f"half a {kind}": (_cut(kind, 0.5), DAMAGED) for kind in _FORMATS}
    files |= {f"the beginning of a {kind}": (_cut(kind, 0.001)[:12].ljust(12, b"\0"), DAMAGED) for kind in ("JPEG",)}
    return files
