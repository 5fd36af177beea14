"""What a file is, by its first bytes; names, media types and suffixes are not believed. Decodes nothing."""

from enum import StrEnum

from glimpse.media.errors import MediaError, MediaErrorCode


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


class AudioFormat(StrEnum):
    """The families of files whose sound is decoded."""

    WAV = "WAV"
    FLAC = "FLAC"
    MP3 = "MP3"
    OGG = "Ogg"
    """Of Vorbis, Opus or FLAC."""
    ADTS = "ADTS"
    """Bare AAC."""
    MP4 = "MP4"
    """M4A and QuickTime too, with or without pictures."""
    MATROSKA = "Matroska"
    """WebM too, with or without pictures."""


_DECODED_IMAGES = "JPEG, PNG, WebP, GIF, BMP and TIFF"
_DECODED_VIDEOS = "MP4, QuickTime, WebM and Matroska"
_DECODED_AUDIOS = "WAV, FLAC, MP3, Ogg, AAC, M4A, MP4, WebM and Matroska"

_Pattern = tuple[tuple[int, bytes], ...]
"""(offset, bytes) … that must all be there."""
_Format = ImageFormat | VideoFormat | AudioFormat | None
"""None: it is not decoded."""

# The first that fits counts.
_IMAGES: tuple[tuple[_Pattern, str, _Format], ...] = (
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
    (((0, b"%PDF-"),), "a PDF document", None),
    (((0, b"#EXTM3U"),), "a playlist", None),
    (((0, b"ffconcat"),), "a playlist", None),
)
_AUDIOS: tuple[tuple[_Pattern, str, _Format], ...] = (
    (((4, b"ftypM4A"),), "an MP4 sound", AudioFormat.MP4),
    (((0, b"RIFF"), (8, b"WAVE")), "a WAV sound", AudioFormat.WAV),
    (((0, b"OggS"),), "an Ogg file", AudioFormat.OGG),
    (((0, b"fLaC"),), "a FLAC sound", AudioFormat.FLAC),
    (((0, b"ID3"),), "an MP3 sound", AudioFormat.MP3),
    # A first frame of MPEG audio's layer III, or of ADTS, with and without a checksum.
    *((((0, bytes((0xFF, second))),), "an MP3 sound", AudioFormat.MP3) for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3)),
    *((((0, bytes((0xFF, second))),), "an AAC sound", AudioFormat.ADTS) for second in (0xF1, 0xF0, 0xF9, 0xF8)),
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
    name, found = _recognised(data, _IMAGES)
    if isinstance(found, ImageFormat):
        return found
    what = name or _other(data, _OTHERS + _AUDIOS + _VIDEOS, "picture")
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"this is {what}; decoded are {_DECODED_IMAGES}")


def sniff_video(data: bytes) -> VideoFormat:
    """The family of a video file. Playlists, which lead elsewhere, are none.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming what it is where that is known.
    """
    if not data:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the video has no bytes")
    name, found = _recognised(data, _IMAGES + _OTHERS + _AUDIOS + _VIDEOS)
    if isinstance(found, VideoFormat):
        return found
    is_video = any(name == video for _, video, _ in _VIDEOS)
    what = name if is_video else _other(data, _IMAGES + _OTHERS + _AUDIOS, "video")
    raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"this is {what}; decoded are {_DECODED_VIDEOS}")


def sniff_audio(data: bytes) -> AudioFormat:
    """The family of a file that has sound; a video may.

    Raises:
        MediaError: INVALID_MEDIA if there are no bytes; UNSUPPORTED_FORMAT, naming what it is where that is known.
    """
    if not data:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "the sound has no bytes")
    match _recognised(data, _IMAGES + _OTHERS + _AUDIOS + _VIDEOS)[1]:
        case AudioFormat() as found:
            return found
        case VideoFormat.MP4:
            return AudioFormat.MP4
        case VideoFormat.MATROSKA:
            return AudioFormat.MATROSKA
        case _:
            what = _other(data, _IMAGES + _OTHERS + _VIDEOS, "sound")
            raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, f"this is {what}; decoded are {_DECODED_AUDIOS}")


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
