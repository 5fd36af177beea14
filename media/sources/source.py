"""Parser of media sources: URLs, data URLs, `file:` URLs and base64. Fetches and decodes nothing.

The media type of a data URL is ignored: `glimpse.media.containers.sniff` detects the format from the first bytes.
"""

import binascii
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode, too_large
from glimpse.media.kind import MediaKind
from glimpse.media.limits import MAX_FILE_BYTES

MAX_UUID_CHARACTERS = 1024
"""Longest uuid that a client may give to media."""
MAX_LISTED_FRAMES = 4096
"""Longest list of frames. If the model takes fewer frames, some of them are sampled."""

_EXPECTED = "an http(s) URL, a data URL or base64"
_MAX_URL_LENGTH = 8192
_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]{0,31}):", re.IGNORECASE)
_FRAMES = re.compile(r"\s*data:video/jpeg\s*;\s*base64,", re.IGNORECASE)
_PATH = re.compile(r"(?!//)(?=.{1,256}$)(~?[/\\]|\.{1,2}[/\\]|[a-z]:|.*\.[a-z0-9]{2,5}$)", re.IGNORECASE)
"""What looks like a path, of texts that are neither URLs nor base64. Longer ones are damaged base64."""
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
_WHITESPACE = b" \t\r\n\f\v"
_SLICE_CHARACTERS = 1 << 20
"""Characters that are decoded in one call, a multiple of 4. A call keeps all other threads waiting."""
_TextT = TypeVar("_TextT", str, bytes)
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSource:
    """Media on another server."""

    url: URL
    """Absolute http or https URL. The fetcher checks and uses this same object, so that no two parsers can disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Media inside the request."""

    data: bytes
    """The file's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSource:
    """Media that were uploaded earlier."""

    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Media in a file of this host, if the operator allows it."""

    path: PurePosixPath
    """Absolute path."""


Source = UrlSource | DataSource | UploadSource | FileSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSource:
    """Media that the client sent earlier under a uuid, as a file or as frames."""

    uuid: str
    """1 to `MAX_UUID_CHARACTERS` characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSources:
    """A video given as a list of images."""

    frames: tuple[Source, ...]
    """Frames in presentation order."""


VideoSource = Source | FrameSources
ImageOrCached = Source | CachedSource
AudioOrCached = Source | CachedSource
VideoOrCached = VideoSource | CachedSource
DocumentOrCached = Source | CachedSource


def parse_url_text(text: str, *, max_bytes: int = MAX_FILE_BYTES[MediaKind.IMAGE]) -> Source:
    """Parses an http(s) URL, a file: URL, a data URL, or bare base64 in the standard or URL-safe alphabet.

    Raises:
        MediaError: INVALID_SOURCE; URL_REFUSED for another scheme; TOO_LARGE for data of more than `max_bytes`.
    """
    text = text.strip()
    if not text:
        raise _invalid(f"expected {_EXPECTED}, got an empty string")
    match = _SCHEME.match(text)
    if match is None:
        return DataSource(data=_decode_base64(text, max_bytes, _no_source(text)))
    match match[1].lower():
        case "http" | "https":
            return UrlSource(url=_parse_web_url(text))
        case "data":
            return DataSource(data=_decode_data_url(text, match.end(), max_bytes))
        case "file":
            return FileSource(path=_parse_file_url(text))
        case drive if len(drive) == 1:
            raise _invalid(_no_source(text))
        case scheme:
            raise MediaError(MediaErrorCode.URL_REFUSED, f"expected an http, https or data URL, got {scheme}:")


def parse_video_text(text: str, *, max_bytes: int = MAX_FILE_BYTES[MediaKind.VIDEO]) -> VideoSource:
    """Like `parse_url_text`, but also accepts frames in vLLM's format: `data:video/jpeg;base64,FRAME,FRAME,…`.

    Raises:
        MediaError: Like `parse_url_text`; TOO_LARGE for too many frames.
    """
    match = _FRAMES.match(text)
    if match is None:
        return parse_url_text(text, max_bytes=max_bytes)
    frames = text[match.end() :].split(",", maxsplit=MAX_LISTED_FRAMES)
    if len(frames) > MAX_LISTED_FRAMES:
        raise MediaError(MediaErrorCode.TOO_LARGE, f"expected at most {MAX_LISTED_FRAMES} frames, got more")
    sources: list[Source] = []
    for frame in frames:
        data = _decode_base64(frame, max_bytes, "expected valid base64 for each frame")
        max_bytes -= len(data)
        sources.append(DataSource(data=data))
    return FrameSources(frames=tuple(sources))


def _no_source(text: str) -> str:
    if _PATH.match(text) is None:
        return f"expected {_EXPECTED}"
    return (
        f"expected {_EXPECTED}, got the path '{text[:64]}'; files are not read by their paths: send a data URL, "
        "or a file: URL where --allowed-local-media-path has the file"
    )


def _parse_web_url(text: str) -> URL:
    url = _parse_url(text)
    if not url.raw_host:
        raise _invalid("expected a URL with a host")
    return url


def _parse_file_url(text: str) -> PurePosixPath:
    url = _parse_url(text)
    if url.raw_authority not in ("", "localhost"):
        raise MediaError(MediaErrorCode.URL_REFUSED, "expected a file: URL without a host")
    if url.raw_query_string or url.raw_fragment:
        raise _invalid("expected a file: URL without query and fragment; write ? and # in a file name as %3F and %23")
    if not url.path.startswith("/") or "\0" in url.path:
        raise _invalid("expected a file: URL with an absolute path")
    return PurePosixPath(url.path)


def _parse_url(text: str) -> URL:
    if len(text) > _MAX_URL_LENGTH:
        raise _invalid(f"expected a URL of at most {_MAX_URL_LENGTH} characters, got {len(text)}")
    # Browsers drop some of these and read a backslash as a slash. Such differences between parsers can hide a host.
    if _NOT_IN_URL.search(text):
        raise _invalid("expected a URL without white space, control characters and backslashes")
    try:
        return URL(text)
    except (ValueError, IndexError) as error:  # IndexError: empty brackets as host
        raise _invalid("expected a valid URL") from error


def _decode_data_url(text: str, start: int, max_bytes: int) -> bytes:
    """Decodes what follows the scheme, which ends at `start`."""
    comma = text.find(",", start)
    if comma < 0:
        raise _invalid("expected a data URL with a comma before the data")
    _, mark, last = text[start:comma].rpartition(";")
    if mark and last.strip().lower() == "base64":
        return _decode_base64(text, max_bytes, "expected valid base64 in the data URL", start=comma + 1)
    return _bounded(b"".join(_unquoted(text, comma + 1)), max_bytes)


def _decode_base64(text: str, max_bytes: int, complaint: str, *, start: int = 0) -> bytes:
    # Base64 characters that are special in URLs may be percent-encoded.
    is_quoted = start > 0 and text.find("%", start) >= 0
    try:
        slices = _unquoted(text, start) if is_quoted else (piece.encode("ascii") for piece in _slices(text, start))
        return _bounded(_of_base64(slices, max_bytes), max_bytes)
    except ValueError as error:
        raise _invalid(complaint) from error


def decode_base64(text: str) -> bytes:
    """Returns the bytes of base64 text, of either alphabet and with any white space. Raises ValueError."""
    return _of_base64(piece.encode("ascii") for piece in _slices(text))


def _of_base64(slices: Iterable[bytes], max_bytes: float = math.inf) -> bytes:
    """Decodes in slices: a single call on a large text would keep all other threads waiting.

    Raises ValueError, or MediaError if there are more than `max_bytes`.
    """
    letters = b"".join([piece.translate(None, _WHITESPACE) for piece in slices])
    if len(letters) // 4 * 3 > max_bytes + 2:
        raise too_large(int(max_bytes))
    is_url_safe = b"-" in letters or b"_" in letters
    if is_url_safe and (b"+" in letters or b"/" in letters):
        raise ValueError("two alphabets")
    # Padding may only be in the last four letters.
    if len(letters) % 4 or letters.find(b"=", 0, max(len(letters) - 4, 0)) >= 0:
        raise ValueError("padding")
    return b"".join([_decode_letters(piece, is_url_safe=is_url_safe) for piece in _slices(letters)])


def _decode_letters(letters: bytes, *, is_url_safe: bool) -> bytes:
    return binascii.a2b_base64(letters.translate(_URL_SAFE) if is_url_safe else letters, strict_mode=True)


def _slices(text: _TextT, start: int = 0) -> Iterator[_TextT]:
    for position in range(start, len(text), _SLICE_CHARACTERS):
        yield text[position : position + _SLICE_CHARACTERS]


def _unquoted(text: str, start: int) -> Iterator[bytes]:
    """Yields percent-encoded text from `start` on as bytes."""
    while start < len(text):
        end = start + _SLICE_CHARACTERS
        # An escape stays whole.
        escape = text.find("%", end - 2, end)
        end = end if escape < 0 else escape
        yield unquote_to_bytes(text[start:end])
        start = end


def _bounded(data: bytes, max_bytes: int) -> bytes:
    if not data:
        raise _invalid("expected data of at least 1 byte")
    if len(data) > max_bytes:
        raise too_large(max_bytes)
    return data


def _invalid(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_SOURCE, message)
