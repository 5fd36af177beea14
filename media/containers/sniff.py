"""Detection of file formats by their first bytes. File names, media types and suffixes are ignored."""

from enum import StrEnum

from glimpse.media.errors import MediaError, MediaErrorCode


class ImageFormat(StrEnum):
    """Supported image formats, by Pillow's names."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WEBP"
    GIF = "GIF"
    BMP = "BMP"
    TIFF = "TIFF"


class VideoFormat(StrEnum):
    """Supported video containers."""

    MP4 = "MP4"
    """Includes QuickTime."""
    MATROSKA = "Matroska"
    """Includes WebM."""


class AudioFormat(StrEnum):
    """Supported audio containers."""

    WAV = "WAV"
    FLAC = "FLAC"
    MP3 = "MP3"
    OGG = "Ogg"
    """With Vorbis, Opus or FLAC."""
    ADTS = "ADTS"
    """Raw AAC."""
    MP4 = "MP4"
    """Includes M4A and QuickTime, with or without video."""
    MATROSKA = "Matroska"
    """Includes WebM, with or without video."""


_EXPECTED_IMAGE = "an image (JPEG, PNG, WebP, GIF, BMP or TIFF)"
_EXPECTED_VIDEO = "a video (MP4, QuickTime, WebM or Matroska)"
_EXPECTED_AUDIO = "audio (WAV, FLAC, MP3, Ogg, AAC, M4A, MP4, WebM or Matroska)"

_Pattern = tuple[tuple[int, bytes], ...]
"""(offset, bytes) pairs that must all match."""
_Format = ImageFormat | VideoFormat | AudioFormat | None
"""None if the format is not supported."""

# The first match counts.
_IMAGES: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((0, b"\xff\xd8\xff"),), "a JPEG image", ImageFormat.JPEG),
    (((0, b"\x89PNG\r\n\x1a\n"),), "a PNG image", ImageFormat.PNG),
    (((0, b"RIFF"), (8, b"WEBP")), "a WebP image", ImageFormat.WEBP),
    (((0, b"GIF87a"),), "a GIF image", ImageFormat.GIF),
    (((0, b"GIF89a"),), "a GIF image", ImageFormat.GIF),
    (((0, b"BM"),), "a BMP image", ImageFormat.BMP),
    (((0, b"II*\x00"),), "a TIFF image", ImageFormat.TIFF),
    (((0, b"MM\x00*"),), "a TIFF image", ImageFormat.TIFF),
    # Formats that clients send although they are not supported.
    (((4, b"ftypavi"),), "an AVIF image", None),
    (((4, b"ftyphei"),), "a HEIC image", None),
    (((4, b"ftyphev"),), "a HEIC image", None),
    (((4, b"ftypmif1"),), "a HEIC image", None),
    (((0, b"\x00\x00\x01\x00"),), "an ICO image", None),
    (((0, b"\xff\x0a"),), "a JPEG XL image", None),
    (((0, b"\x00\x00\x00\x0cJXL "),), "a JPEG XL image", None),
    (((0, b"\x00\x00\x00\x0cjP  "),), "a JPEG 2000 image", None),
)
_OTHERS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((0, b"%PDF-"),), "a PDF document", None),
    (((0, b"#EXTM3U"),), "a playlist", None),
    (((0, b"ffconcat"),), "a playlist", None),
)
_AUDIOS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((4, b"ftypM4A"),), "an MP4 audio file", AudioFormat.MP4),
    (((0, b"RIFF"), (8, b"WAVE")), "a WAV file", AudioFormat.WAV),
    (((0, b"OggS"),), "an Ogg file", AudioFormat.OGG),
    (((0, b"fLaC"),), "a FLAC file", AudioFormat.FLAC),
    (((0, b"ID3"),), "an MP3 file", AudioFormat.MP3),
    # First frames of MPEG audio layer III and of ADTS, with and without a checksum.
    *((((0, bytes((0xFF, second))),), "an MP3 file", AudioFormat.MP3) for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3)),
    *((((0, bytes((0xFF, second))),), "an AAC file", AudioFormat.ADTS) for second in (0xF1, 0xF0, 0xF9, 0xF8)),
)
_VIDEOS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((4, b"ftypqt  "),), "a QuickTime video", VideoFormat.MP4),
    (((4, b"ftyp"),), "an MP4 video", VideoFormat.MP4),
    # Old QuickTime files begin with one of these.
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
    """Returns the format of an image file.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming the format if it is known.
    """
    name, found = _lookup(data)
    if isinstance(found, ImageFormat):
        return found
    raise _unsupported(data, name, _EXPECTED_IMAGE)


def sniff_video(data: bytes) -> VideoFormat:
    """Returns the container of a video file. Playlists are not supported.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming the format if it is known.
    """
    name, found = _lookup(data)
    if isinstance(found, VideoFormat):
        return found
    raise _unsupported(data, name, _EXPECTED_VIDEO)


def sniff_audio(data: bytes) -> AudioFormat:
    """Returns the container of an audio file, or of a video file that may contain audio.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming the format if it is known.
    """
    name, found = _lookup(data)
    match found:
        case AudioFormat():
            return found
        case VideoFormat.MP4:
            return AudioFormat.MP4
        case VideoFormat.MATROSKA:
            return AudioFormat.MATROSKA
        case _:
            raise _unsupported(data, name, _EXPECTED_AUDIO)


def _lookup(data: bytes) -> tuple[str, _Format]:
    """Returns the name and the format of a file; an empty name if it matches no pattern."""
    for pattern, name, found in (*_IMAGES, *_OTHERS, *_AUDIOS, *_VIDEOS):
        if all(data.startswith(magic, offset) for offset, magic in pattern):
            return name, found
    return "", None


def _unsupported(data: bytes, name: str, expected: str) -> MediaError:
    if not data:
        return MediaError(MediaErrorCode.INVALID_MEDIA, f"expected {expected}, got 0 bytes")
    start = data[:256].lstrip().lower()
    name = name or next((name for tag, name in _MARKUP if start.startswith(tag)), "an unknown format")
    return MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"expected {expected}, got {name}")
