"""Detection of file formats by their first bytes. File names, media types and suffixes are ignored."""

from enum import StrEnum
from typing import TypeVar

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind


class ImageFormat(StrEnum):
    """Supported image formats, by Pillow's names."""

    JPEG = "JPEG"
    PNG = "PNG"
    WEBP = "WEBP"
    GIF = "GIF"
    BMP = "BMP"
    TIFF = "TIFF"
    HEIC = "HEIF"
    """HEVC in HEIF, as phones write."""
    AVIF = "AVIF"


class VideoFormat(StrEnum):
    """Supported video containers, by FFmpeg's names of their demuxers."""

    MP4 = "mov"
    """Includes QuickTime."""
    MATROSKA = "matroska"
    """Includes WebM."""
    AVI = "avi"


class AudioFormat(StrEnum):
    """Supported audio containers, by FFmpeg's names of their demuxers."""

    WAV = "wav"
    FLAC = "flac"
    MP3 = "mp3"
    OGG = "ogg"
    """With Vorbis, Opus or FLAC."""
    ADTS = "aac"
    """Raw AAC."""
    MP4 = "mov"
    """Includes M4A and QuickTime, with or without video."""
    MATROSKA = "matroska"
    """Includes WebM, with or without video."""
    AVI = "avi"


class DocumentFormat(StrEnum):
    """Supported formats of documents."""

    PDF = "PDF"


_CODEC_BRANDS = (b"avis", b"avif", b"hevc", b"hevx", b"heic", b"heix")
"""Brands of sequences come first, since their files have the brand of an image too."""
FormatT = TypeVar("FormatT", bound=StrEnum)

_Pattern = tuple[tuple[int, bytes | tuple[bytes, ...]], ...]
"""(offset, prefixes) pairs. At each offset must be one of the prefixes."""
_Format = ImageFormat | VideoFormat | AudioFormat | DocumentFormat | None
"""None if the format is not supported."""

# First frames of MPEG audio layer III and of ADTS, with and without a checksum.
_MP3_STARTS = (b"ID3", b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2", b"\xff\xe3")
_ADTS_STARTS = (b"\xff\xf1", b"\xff\xf0", b"\xff\xf9", b"\xff\xf8")
# The first match counts.
_FORMATS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((0, b"\xff\xd8\xff"),), "a JPEG image", ImageFormat.JPEG),
    (((0, b"\x89PNG\r\n\x1a\n"),), "a PNG image", ImageFormat.PNG),
    (((0, b"RIFF"), (8, b"WEBP")), "a WebP image", ImageFormat.WEBP),
    (((0, (b"GIF87a", b"GIF89a")),), "a GIF image", ImageFormat.GIF),
    (((0, b"BM"),), "a BMP image", ImageFormat.BMP),
    (((0, (b"II*\x00", b"MM\x00*")),), "a TIFF image", ImageFormat.TIFF),
    (((4, (b"ftypheic", b"ftypheix", b"ftypheim", b"ftypheis")),), "a HEIC image", ImageFormat.HEIC),
    (((4, (b"ftypavif", b"ftypavis")),), "an AVIF image", ImageFormat.AVIF),
    # Formats that clients send although they are not supported.
    (((4, (b"ftyphevc", b"ftyphevx", b"ftypmsf1")),), "a sequence of HEIC images", None),
    (((4, b"ftypmif1"),), "a HEIF image of another codec than HEVC and AV1", None),
    (((0, b"\x00\x00\x01\x00"),), "an ICO image", None),
    (((0, (b"\xff\x0a", b"\x00\x00\x00\x0cJXL ")),), "a JPEG XL image", None),
    (((0, (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51")),), "a JPEG 2000 image", None),
    (((0, b"%PDF-"),), "a PDF document", DocumentFormat.PDF),
    (((0, (b"#EXTM3U", b"ffconcat")),), "a playlist", None),
    (((4, b"ftypM4A"),), "an MP4 audio file", AudioFormat.MP4),
    (((0, b"RIFF"), (8, b"WAVE")), "a WAV file", AudioFormat.WAV),
    (((0, b"OggS"),), "an Ogg file", AudioFormat.OGG),
    (((0, b"fLaC"),), "a FLAC file", AudioFormat.FLAC),
    (((0, _MP3_STARTS),), "an MP3 file", AudioFormat.MP3),
    (((0, _ADTS_STARTS),), "an AAC file", AudioFormat.ADTS),
    # Old QuickTime files begin with one of the last three.
    (((4, (b"ftypqt  ", b"moov", b"wide", b"mdat")),), "a QuickTime video", VideoFormat.MP4),
    (((4, b"ftyp"),), "an MP4 video", VideoFormat.MP4),
    (((0, b"\x1a\x45\xdf\xa3"),), "a WebM or Matroska video", VideoFormat.MATROSKA),
    (((0, b"RIFF"), (8, b"AVI ")), "an AVI video", VideoFormat.AVI),
    (((0, b"\x00\x00\x01\xba"),), "an MPEG video", None),
    (((0, b"FLV\x01"),), "a Flash video", None),
    (((0, (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")),), "an office document or an archive", None),
)
_KINDS = (
    (ImageFormat, MediaKind.IMAGE),
    (VideoFormat, MediaKind.VIDEO),
    (AudioFormat, MediaKind.AUDIO),
    (DocumentFormat, MediaKind.DOCUMENT),
)
_ADVICE = {
    "a PDF document": "send it as a document",
    "an SVG drawing": "render it to PNG",
    "an ICO image": "convert it to PNG",
    "a JPEG XL image": "convert it to JPEG or PNG",
    "a JPEG 2000 image": "convert it to JPEG or PNG",
    "a HEIF image of another codec than HEVC and AV1": "convert it to JPEG or PNG",
    "a sequence of HEIC images": "send one as an image, or all as an MP4 video",
    "an HTML page": "send the file that the page shows",
    "an office document or an archive": "save it as PDF",
}
"""What to send instead, by the name of an unsupported format."""
_MARKUP: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    ((b"<!doctype html", b"<html"), "an HTML page"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML document"),
)


def spelling(pillow_format: str | None) -> str:
    """Returns the name that people know for one of Pillow's formats."""
    return {"WEBP": "WebP", "HEIF": "HEIC", "MPO": "JPEG", None: "image"}.get(pillow_format) or str(pillow_format)


def find_format(data: bytes) -> _Format:
    """Returns the format of a file; None if it is not supported."""
    return _lookup(data)[1]


def find_kind(data: bytes) -> MediaKind | None:
    """Returns what kind of medium a file is; None if it is of no supported format."""
    return next((kind for formats, kind in _KINDS if isinstance(find_format(data), formats)), None)


def sniff_image(data: bytes) -> ImageFormat:
    """Returns the format of an image file.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming the format if it is known.
    """
    return _sniff(data, "an image (JPEG, PNG, WebP, HEIC, AVIF, GIF, BMP or TIFF)", ImageFormat)


def sniff_video(data: bytes) -> VideoFormat:
    """Returns the container of a video file. Playlists are not supported. Raises as `sniff_image` does."""
    return _sniff(data, "a video (MP4, QuickTime, WebM, Matroska or AVI, or an animated image)", VideoFormat)


def sniff_audio(data: bytes) -> AudioFormat:
    """Returns the container of an audio file, or of a video that may contain audio. Raises as `sniff_image` does."""
    expected = "audio (WAV, FLAC, MP3, Ogg, AAC, M4A, MP4, WebM, Matroska or AVI)"
    return AudioFormat(_sniff(data, expected, AudioFormat, VideoFormat).value)


def sniff_document(data: bytes) -> DocumentFormat:
    """Returns the format of a document. Raises as `sniff_image` does."""
    return _sniff(data, "a PDF document", DocumentFormat)


def _sniff(data: bytes, expected: str, *accepted: type[FormatT]) -> FormatT:
    if not data:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, f"expected {expected}, got 0 bytes")
    name, found = _lookup(data)
    if isinstance(found, accepted):
        return found
    advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"expected {expected}, got {name}{advice}")


def _lookup(data: bytes) -> tuple[str, _Format]:
    """Returns the name and the format of a file."""
    data = _with_own_brand(data)
    for pattern, name, found in _FORMATS:
        if all(data.startswith(prefixes, offset) for offset, prefixes in pattern):
            return name, found
    start = data[:1024].lstrip().lower()
    if start.startswith(b"<?xml") and b"<svg" in start:
        return "an SVG drawing", None
    if (markup := next((name for tag, name in _MARKUP if start.startswith(tag)), None)) is not None:
        return markup, None
    # Readers of PDF skip what precedes the header.
    return ("a PDF document", DocumentFormat.PDF) if b"%PDF-" in data else ("an unknown format", None)


def _with_own_brand(data: bytes) -> bytes:
    """Returns the start of a file. A HEIF file with a general brand gets that of its codec, which follows there."""
    head = data[:1024]
    if not head.startswith((b"ftypmif1", b"ftypmsf1"), 4):
        return head
    brands = head[16 : int.from_bytes(head[:4], "big")]
    own = next((brand for brand in _CODEC_BRANDS if brand in brands), head[8:12])
    return head[:8] + own + head[12:]
