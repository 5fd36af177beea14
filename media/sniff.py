"""What a file is, by its first bytes; names, media types and suffixes are not believed. Decodes nothing."""

from enum import StrEnum

from media.errors import MediaError, MediaErrorCode


class ImageFormat(StrEnum):
    """The picture formats that are decoded, under Pillow's names for them."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WEBP"
    GIF = "GIF"
    BMP = "BMP"
    TIFF = "TIFF"


_DECODED = "JPEG, PNG, WebP, GIF, BMP and TIFF"

# (offset, bytes) … that must all be there → the format.
_Pattern = tuple[tuple[int, bytes], ...]
_PICTURES: tuple[tuple[_Pattern, ImageFormat], ...] = (
    (((0, b"\xff\xd8\xff"),), ImageFormat.JPEG),
    (((0, b"\x89PNG\r\n\x1a\n"),), ImageFormat.PNG),
    (((0, b"RIFF"), (8, b"WEBP")), ImageFormat.WEBP),
    (((0, b"GIF87a"),), ImageFormat.GIF),
    (((0, b"GIF89a"),), ImageFormat.GIF),
    (((0, b"BM"),), ImageFormat.BMP),
    (((0, b"II*\x00"),), ImageFormat.TIFF),
    (((0, b"MM\x00*"),), ImageFormat.TIFF),
)
# What else people send, and what to call it. The first that fits counts.
_OTHERS: tuple[tuple[_Pattern, str], ...] = (
    (((4, b"ftypavi"),), "an AVIF picture"),
    (((4, b"ftyphei"),), "a HEIC picture"),
    (((4, b"ftyphev"),), "a HEIC picture"),
    (((4, b"ftypmif1"),), "a HEIC picture"),
    (((4, b"ftypqt  "),), "a QuickTime video, not a picture"),
    (((4, b"ftypM4A"),), "an MP4 sound, not a picture"),
    (((4, b"ftyp"),), "an MP4 video, not a picture"),
    (((0, b"\x1a\x45\xdf\xa3"),), "a WebM or Matroska video, not a picture"),
    (((0, b"RIFF"), (8, b"AVI ")), "an AVI video, not a picture"),
    (((0, b"\x00\x00\x01\xba"),), "an MPEG video, not a picture"),
    (((0, b"FLV\x01"),), "a Flash video, not a picture"),
    (((0, b"RIFF"), (8, b"WAVE")), "a WAV sound, not a picture"),
    (((0, b"OggS"),), "an Ogg file, not a picture"),
    (((0, b"fLaC"),), "a FLAC sound, not a picture"),
    (((0, b"ID3"),), "an MP3 sound, not a picture"),
    (((0, b"%PDF-"),), "a PDF document, not a picture"),
    (((0, b"\x00\x00\x01\x00"),), "an ICO picture"),
    (((0, b"\xff\x0a"),), "a JPEG XL picture"),
    (((0, b"\x00\x00\x00\x0cJXL "),), "a JPEG XL picture"),
    (((0, b"\x00\x00\x00\x0cjP  "),), "a JPEG 2000 picture"),
)
_MARKUP: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype html", "an HTML page, not a picture"),
    (b"<html", "an HTML page, not a picture"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML document (an SVG drawing, perhaps)"),
)


def sniff_image(data: bytes) -> ImageFormat:
    """The format of a picture's file.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming what it is where that is known.
    """
    if not data:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the picture has no bytes")
    for pattern, image_format in _PICTURES:
        if _fits(data, pattern):
            return image_format
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"this is {_describe(data)}; decoded are {_DECODED}")


def _describe(data: bytes) -> str:
    for pattern, description in _OTHERS:
        if _fits(data, pattern):
            return description
    start = data[:256].lstrip().lower()
    return next((description for tag, description in _MARKUP if start.startswith(tag)), "no known picture format")


def _fits(data: bytes, pattern: _Pattern) -> bool:
    return all(data.startswith(magic, offset) for offset, magic in pattern)
