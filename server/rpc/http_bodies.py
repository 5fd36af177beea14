"""Collects the body of a REST request from its chunks, or reads it line by line."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from google.api.httpbody_pb2 import HttpBody

from glimpse.server.rpc.body_budget import release_body, reserve_body
from glimpse.server.rpc.errors import InvalidRequest

JSON_LINES = "application/x-ndjson"
"""The content type of JSON documents, one in each line."""

_IDLE_SECONDS = 30.0
"""How long a client may send nothing before its body is complete."""


async def collect(chunks: AsyncIterator[HttpBody], *, max_bytes: int) -> list[bytes]:
    """Returns the pieces of the whole body: joining large ones takes time.

    Raises:
        InvalidRequest: the body is larger than `max_bytes` or than what is left for bodies, its content type is not
            JSON, or nothing came for a while.
    """
    kept: list[bytes] = []
    num_bytes = 0
    refusal: tuple[str, str] | None = None
    while (chunk := await _next(chunks)) is not None and num_bytes <= 2 * max_bytes:
        _check_content_type(chunk.content_type, is_first=num_bytes == 0)
        num_bytes += len(chunk.data)
        refusal = refusal or _refusal(len(chunk.data), num_bytes, max_bytes)
        if refusal is None:
            kept.append(chunk.data)
        else:
            kept.clear()
            release_body()
    # Refused only now: a client that sends its whole body before it reads would see a closed connection and no error.
    if refusal is not None:
        raise InvalidRequest("", *refusal)
    return kept


async def read_lines(chunks: AsyncIterator[HttpBody], *, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yields the lines of a body as they arrive, without empty ones.

    Raises:
        InvalidRequest: a line is larger than `max_bytes`, the content type is not JSON, or nothing came for a while.
    """
    line, is_first = bytearray(), True
    while (chunk := await _next(chunks)) is not None:
        _check_content_type(chunk.content_type, is_first=is_first)
        is_first = False
        for piece in chunk.data.splitlines(keepends=True):
            line += piece
            if len(line) > max_bytes:
                raise InvalidRequest("", f"A line of the body is larger than {max_bytes} bytes.", "request_too_large")
            if piece.endswith(b"\n"):
                if complete := bytes(line).strip():
                    yield complete
                line.clear()
    if line.strip():
        yield bytes(line)


async def _next(chunks: AsyncIterator[HttpBody]) -> HttpBody | None:
    try:
        async with asyncio.timeout(_IDLE_SECONDS):
            return await anext(chunks, None)
    except TimeoutError:
        message = f"expected the rest of the body, got nothing for {_IDLE_SECONDS:g} seconds"
        raise InvalidRequest("", message, "request_timeout") from None


def _refusal(num_bytes: int, num_all_bytes: int, max_bytes: int) -> tuple[str, str] | None:
    """Returns message and reason if a chunk is refused. Reserves its bytes otherwise."""
    if num_all_bytes > max_bytes:
        return f"The body is larger than {max_bytes} bytes.", "request_too_large"
    try:
        reserve_body(num_bytes)
    except InvalidRequest as error:
        return error.message, error.reason
    return None


def _check_content_type(content_type: str, *, is_first: bool) -> None:
    """Requires JSON of the first chunk; later ones have no type. Web pages may send other types without permission."""
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type and not is_first:
        return
    if media_type not in ("application/json", JSON_LINES) and not media_type.endswith("+json"):
        got = f"not {media_type[:64]}" if media_type else "but the request has no content type"
        raise InvalidRequest("", f"The body must be application/json, {got}.", "unsupported_media_type")
