"""Parses forms (multipart/form-data) in pieces, as they arrive. Bounds what a form may have beside its files."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from multipart import MultipartError, MultipartSegment, ParserLimitReached, PushMultipartParser

from glimpse.server.errors import InvalidRequest

_MAX_MEMBERS = 32
_MAX_TEXT_BYTES = 64 << 10
_MAX_HEADERS = 8
_MAX_HEADER_BYTES = 4096
_MAX_BOUNDARY_CHARACTERS = 70
"""By RFC 2046."""
_BOUNDARY = re.compile(r'(?:^|;)\s*boundary=(?:"([^"]+)"|([^\s";]+))\s*(?:;|$)', re.IGNORECASE)
_TYPE = "multipart/form-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormText:
    """A member that is a text, whole."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFile:
    """A member that is a file. Its pieces follow."""

    name: str
    filename: str


FormEvent = FormText | FormFile | bytes
"""`bytes` are a piece of the last file."""


class FormParser:
    """Parses one form."""

    def __init__(self, content_type: str) -> None:
        """Raises InvalidRequest unless `content_type` is that of a form."""
        self._parser = PushMultipartParser(
            _boundary(content_type),
            max_header_size=_MAX_HEADER_BYTES,
            max_header_count=_MAX_HEADERS,
            max_segment_count=_MAX_MEMBERS,
        )
        self._name = ""
        self._text: bytearray | None = None
        """The text that is being read; None: a file is."""
        self._num_text_bytes = 0

    def feed(self, data: bytes) -> list[FormEvent]:
        """Returns what the next piece of the body completes. Raises InvalidRequest."""
        events = list[FormEvent]()
        with _refusing():
            for event in self._parser.parse(data) if data else ():
                events += self._read(event)
        return events

    def close(self) -> None:
        """Ends the body. Raises InvalidRequest if the form is not complete."""
        with _refusing():
            self._parser.close()

    def _read(self, event: MultipartSegment | bytes | bytearray | None) -> Generator[FormEvent]:
        match event:
            case MultipartSegment():
                self._name = event.name or ""
                self._text = bytearray() if event.filename is None else None
                if event.filename is not None:
                    yield FormFile(name=self._name, filename=event.filename)
            case None:
                if self._text is not None:
                    yield FormText(name=self._name, text=_decoded(self._name, self._text))
            case _ if self._text is None:
                yield bytes(event)
            case _:
                self._num_text_bytes += len(event)
                if self._num_text_bytes > _MAX_TEXT_BYTES:
                    message = f"The form: expected texts of at most {_MAX_TEXT_BYTES} bytes beside its file, got more."
                    raise InvalidRequest("", message, "request_too_large")
                self._text += event


def _boundary(content_type: str) -> str:
    media_type, _, parameters = content_type.partition(";")
    if media_type.strip().lower() != _TYPE:
        got = f"not {media_type.strip()[:64]}" if media_type.strip() else "but the request has no content type"
        raise InvalidRequest("", f"The body must be {_TYPE}, {got}.", "unsupported_media_type")
    found = _BOUNDARY.search(parameters)
    boundary = (found[1] or found[2]) if found else ""
    if not 1 <= len(boundary) <= _MAX_BOUNDARY_CHARACTERS or not boundary.isascii() or not boundary.isprintable():
        message = f"The content type: expected {_TYPE} with a boundary of 1 to {_MAX_BOUNDARY_CHARACTERS} characters."
        raise InvalidRequest("", message)
    return boundary


def _decoded(name: str, text: bytearray) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(name[:64], "expected UTF-8 text, got other bytes") from error


@contextmanager
def _refusing() -> Generator[None]:
    """Raises InvalidRequest for what the library refuses."""
    try:
        yield
    except ParserLimitReached as error:
        message = (
            f"The form: expected at most {_MAX_MEMBERS} members, each with at most {_MAX_HEADERS} headers of"
            f" {_MAX_HEADER_BYTES} bytes, got more."
        )
        raise InvalidRequest("", message, "request_too_large") from error
    except MultipartError as error:
        raise InvalidRequest("", f"The body is not a valid form: {error.args[0]}.", "invalid_form") from error
