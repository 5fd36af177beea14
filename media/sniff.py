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


class VideoFormat(StrEnum):
    """The families of video files that are decoded."""

    MP4 = "MP4"
    """QuickTime too."""
    MATROSKA = "Matroska"
    """WebM too."""


_DECODED_PICTURES = "JPEG, PNG, WebP, GIF, BMP and TIFF"
_DECODED_VIDEOS = "MP4, QuickTime, WebM and Matroska"

_Pattern = tuple[tuple[int, bytes], ...]
"""(offset, bytes) … that must all be there."""
_Format = ImageFormat | VideoFormat | None
"""None: it is not decoded."""

# The first that fits counts.
_PICTURES: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((0, b"\xff\xd8\xff"),), "a JPEG picture", ImageFormat.JPEG),
    (((0, b"\x89PNG\r\n\x1a\n"),), "a PNG picture", ImageFormat.PNG),
    (((0, b"RIFF"), (8, b"WEBP")), "a WebP picture", ImageFormat.WEBP),
    (((0, b"GIF87a"),), "a GIF picture", ImageFormat.GIF),
    (((0, b"GIF89a"),), "a GIF picture", ImageFormat.GIF),
    (((0, b"BM"),), "a BMP picture", ImageFormat.BMP),
    (((0, b"II*\x00"),), "a TIFF picture", ImageFormat.TIFF),
    (((0, b"MM\x00*"),), "a TIFF picture", ImageFormat.TIFF),
    # What else people send.
    (((4, b"ftypavi"),), "an AVIF picture", None),
    (((4, b"ftyphei"),), "a HEIC picture", None),
    (((4, b"ftyphev"),), "a HEIC picture", None),
    (((4, b"ftypmif1"),), "a HEIC picture", None),
    (((0, b"\x00\x00\x01\x00"),), "an ICO picture", None),
    (((0, b"\xff\x0a"),), "a JPEG XL picture", None),
    (((0, b"\x00\x00\x00\x0cJXL "),), "a JPEG XL picture", None),
    (((0, b"\x00\x00\x00\x0cjP  "),), "a JPEG 2000 picture", None),
)
_OTHERS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((4, b"ftypM4A"),), "an MP4 sound", None),
    (((0, b"RIFF"), (8, b"WAVE")), "a WAV sound", None),
    (((0, b"OggS"),), "an Ogg file", None),
    (((0, b"fLaC"),), "a FLAC sound", None),
    (((0, b"ID3"),), "an MP3 sound", None),
    (((0, b"%PDF-"),), "a PDF document", None),
    (((0, b"#EXTM3U"),), "a playlist", None),
    (((0, b"ffconcat"),), "a playlist", None),
)
_VIDEOS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((4, b"ftypqt  "),), "a QuickTime video", VideoFormat.MP4),
    (((4, b"ftyp"),), "an MP4 video", VideoFormat.MP4),
    # With these QuickTime files of old begin.
    (((4, b"moov"),), "a QuickTime video", VideoFormat.MP4),
    (((4, b"wide"),), "a QuickTime video", VideoFormat.MP4),
    (((4, b"mdat"),), "a QuickTime video", VideoFormat.MP4),
    (((0, b"\x1a\x45\xdf\xa3"),), "a WebM or Matroska video", VideoFormat.MATROSKA),
    (((0, b"RIFF"), (8, b"AVI ")), "an AVI video", None),
    (((0, b"\x00\x00\x01\xba"),), "an MPEG video", None),
    (((0, b"FLV\x01"),), "a Flash video", None),
)
_MARKUP: tuple[tuple[bytes, str], ...] = (
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML document"),
)


def sniff_image(data: bytes) -> ImageFormat:
    """The format of a picture's file.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming what it is where that is known.
    """
    if not data:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the picture has no bytes")
    name, found = _recognised(data, _PICTURES)
    if isinstance(found, ImageFormat):
        return found
    what = name or _other(data, _OTHERS + _VIDEOS, "picture")
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"this is {what}; decoded are {_DECODED_PICTURES}")


def sniff_video(data: bytes) -> VideoFormat:
    """The family of a video file. Playlists, which lead elsewhere, are none.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming what it is where that is known.
    """
    if not data:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the video has no bytes")
    name, found = _recognised(data, _PICTURES + _OTHERS + _VIDEOS)
    if isinstance(found, VideoFormat):
        return found
    is_video = any(name == video for _, video, _ in _VIDEOS)
    what = name if is_video else _other(data, _PICTURES + _OTHERS, "video")
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"this is {what}; decoded are {_DECODED_VIDEOS}")


def _recognised(data: bytes, table: tuple[tuple[_Pattern, str, _Format], ...]) -> tuple[str, _Format]:
    """The name of what it is, empty if that is not in the table, and its format."""
    for pattern, name, found in table:
        if all(data.startswith(magic, offset) for offset, magic in pattern):
            return name, found
    return "", None


def _other(data: bytes, table: tuple[tuple[_Pattern, str, _Format], ...], wanted: str) -> str:
    start = data[:256].lstrip().lower()
    name = _recognised(data, table)[0] or next((name for tag, name in _MARKUP if start.startswith(tag)), "")
    return f"{name}, not a {wanted}" if name else f"no known {wanted} format"
