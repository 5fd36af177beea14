"""Parses the lines of a batch: requests of the REST API, one in each line, as OpenAI's batches have them."""

from collections.abc import Container
from typing import Annotated

import msgspec

from glimpse.server.errors import InvalidRequest


class BatchLine(msgspec.Struct, frozen=True):
    """A request of a batch."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """Name of the request, which the result repeats."""
    url: str
    """The path, such as "/v1/chat/completions"."""
    body: msgspec.Raw
    """The JSON document."""
    method: str = "POST"


class _Body(msgspec.Struct):
    """What a batch has to know of a body."""

    stream: bool | None = None


def parse_line(line: bytes, urls: Container[str]) -> BatchLine:
    """Parses a line. `urls` are the paths that it may have. Raises InvalidRequest."""
    try:
        parsed = msgspec.json.decode(line, type=BatchLine)
        body = msgspec.json.decode(parsed.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest("", f"expected a request of a batch, got another document: {error}") from error
    if parsed.method != "POST":
        raise InvalidRequest("method", f"expected 'POST', got '{parsed.method[:64]}'")
    if parsed.url not in urls:
        raise InvalidRequest("url", f"expected the path of a POST request, got '{parsed.url[:64]}'")
    if body.stream:
        raise InvalidRequest("body.stream", "expected false: the result of a batch is a document")
    return parsed
