"""Text that says where a medium is → a `Source`. Knows the ways of writing one; fetches and decodes nothing.

A data URL's media type is not kept: what a file is, its own first bytes say (`glimpse.media.containers.sniff`).
"""

import binascii
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote_to_bytes

from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode

DEFAULT_MAX_BYTES = 50 << 20
"""The most bytes of a picture, and of a sound."""
DEFAULT_MAX_VIDEO_BYTES = 100 << 20
"""The most bytes of a clip, all of its frames together where they are pictures."""
MAX_UUID_CHARACTERS = 1024
"""The longest name that a client may give a medium."""
MAX_LISTED_FRAMES = 4096
"""The most pictures that a list of frames may have; of too many for the model, some are taken."""

_MAX_URL_LENGTH = 8192
_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]{0,31}):", re.IGNORECASE)
_FRAMES = re.compile(r"\s*data:video/jpeg\s*;\s*base64,", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
_WHITESPACE = b" \t\r\n\f\v"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSource:
    """A medium that another server holds."""

    url: URL
    """Absolute, http or https. The same object is checked and connected to, so that no two parsers can disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """A medium that came with the request."""

    data: bytes
    """The file, as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSource:
    """A medium that was uploaded before."""

    handle: str
    """As the upload was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """A medium in a file of this host, which its operator may let clients name."""

    path: PurePosixPath
    """Absolute."""


Source = UrlSource | DataSource | UploadSource | FileSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSource:
    """A medium that the client sent before, file or frames, under a name of its own."""

    uuid: str
    """1 to `MAX_UUID_CHARACTERS` characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSources:
    """A clip as pictures, each its own medium."""

    frames: tuple[Source, ...]
    """In the order of time."""


VideoSource = Source | FrameSources
ImageOrCached = Source | CachedSource
AudioOrCached = Source | CachedSource
VideoOrCached = VideoSource | CachedSource


def parse_url_text(text: str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Source:
    """Reads an http(s) URL, a file: URL, a data URL, or bare base64 of either alphabet.

    Raises:
        MediaError: INVALID_SOURCE, URL_REFUSED for another scheme, TOO_LARGE for base64 of more than `max_bytes`.
    """
    text = text.strip()
    if not text:
        raise _invalid("it is empty")
    match = _SCHEME.match(text)
    if match is None:
        return DataSource(data=_decode_base64(text, max_bytes, "it is neither an http(s) URL, a data URL nor base64"))
    match match[1].lower():
        case "http" | "https":
            return UrlSource(url=_parse_web_url(text))
        case "data":
            return DataSource(data=_decode_data_url(text[match.end() :], max_bytes))
        case "file":
            return FileSource(path=_parse_file_url(text))
        case scheme:
            raise MediaError(MediaErrorCode.URL_REFUSED, f"{scheme}: URLs are not fetched; http, https and data are")


def parse_video_text(text: str, *, max_bytes: int = DEFAULT_MAX_VIDEO_BYTES) -> VideoSource:
    """Reads what `parse_url_text` does, and frames as vLLM has them: `data:video/jpeg;base64,FRAME,FRAME,…`.

    Raises:
        MediaError: as `parse_url_text`; TOO_LARGE for too many frames.
    """
    match = _FRAMES.match(text)
    if match is None:
        return parse_url_text(text, max_bytes=max_bytes)
    frames = text[match.end() :].split(",", maxsplit=MAX_LISTED_FRAMES)
    if len(frames) > MAX_LISTED_FRAMES:
        raise MediaError(MediaErrorCode.TOO_LARGE, f"a clip has at most {MAX_LISTED_FRAMES} frames")
    sources: list[Source] = []
    for frame in frames:
        data = _decode_base64(frame, max_bytes, "a frame's base64 is damaged")
        max_bytes -= len(data)
        sources.append(DataSource(data=data))
    return FrameSources(frames=tuple(sources))


def _parse_web_url(text: str) -> URL:
    url = _parse_url(text)
    if not url.raw_host:
        raise _invalid("the URL has no host")
    return url


def _parse_file_url(text: str) -> PurePosixPath:
    url = _parse_url(text)
    if url.raw_authority not in ("", "localhost"):
        raise MediaError(MediaErrorCode.URL_REFUSED, "a file: URL names a file of the server's host and no other")
    if url.raw_query_string or url.raw_fragment:
        raise _invalid("a file: URL has neither a query nor a fragment; ? and # in a file's name are %3F and %23")
    if not url.path.startswith("/") or "\0" in url.path:
        raise _invalid("the file: URL has no absolute path")
    return PurePosixPath(url.path)


def _parse_url(text: str) -> URL:
    if len(text) > _MAX_URL_LENGTH:
        raise _invalid(f"the URL is longer than {_MAX_URL_LENGTH} characters")
    # Browsers drop some of these and read a backslash as a slash; parsers that differ there are how hosts are smuggled.
    if _NOT_IN_URL.search(text):
        raise _invalid("the URL contains white space, a control character or a backslash")
    try:
        return URL(text)
    except (ValueError, IndexError) as error:  # the latter of a host in brackets that is empty
        raise _invalid("the URL cannot be parsed") from error


def _decode_data_url(rest: str, max_bytes: int) -> bytes:
    header, comma, payload = rest.partition(",")
    if not comma:
        raise _invalid("the data URL has no comma before its data")
    if header.rstrip().lower().endswith(";base64"):
        # The letters of base64 that mean something in a URL may be percent-encoded.
        text = unquote_to_bytes(payload).decode("latin-1") if "%" in payload else payload
        return _decode_base64(text, max_bytes, "the data URL's base64 is damaged")
    return _bounded(unquote_to_bytes(payload), max_bytes)


def _decode_base64(text: str, max_bytes: int, complaint: str) -> bytes:
    try:
        letters = text.encode("ascii").translate(None, _WHITESPACE)
        if len(letters) // 4 * 3 > max_bytes + 2:
            raise _too_large(max_bytes)
        if b"-" in letters or b"_" in letters:
            if b"+" in letters or b"/" in letters:
                raise _invalid(complaint)
            letters = letters.translate(_URL_SAFE)
        if len(letters) % 4:
            raise _invalid(complaint)
        data = binascii.a2b_base64(letters, strict_mode=True)
    except ValueError as error:  # not ASCII, or not base64
        raise _invalid(complaint) from error
    return _bounded(data, max_bytes)


def _bounded(data: bytes, max_bytes: int) -> bytes:
    if not data:
        raise _invalid("there are no bytes in it")
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the medium is larger than {max_bytes} bytes")


def _invalid(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_SOURCE, message)
