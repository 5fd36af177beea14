"""Reads the bodies of requests as they arrive, at a least rate: REST bodies whole or line by line, and uploads.

Encodes those of responses.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Generic, TypeVar

from google.api.httpbody_pb2 import HttpBody

from glimpse.server.call.body_budget import BodyReservation
from glimpse.server.errors import InvalidRequest

JSON_LINES = "application/x-ndjson"
"""The content type of JSON documents, one in each line."""


MIN_BYTES_PER_SECOND = 16 << 10
"""About what the slowest mobile networks deliver."""
MAX_BEHIND_SECONDS = 30.0
"""How long a client may send nothing, or how far it may fall behind the least rate."""
_MAX_DISCARD_SECONDS = 30.0
_MAX_SILENT_SECONDS = 1.0
"""How long a body that is of no use is read. A client that is silent already waits for its answer."""

PieceT = TypeVar("PieceT")


class PacedBody(Generic[PieceT]):
    """A body in pieces, read as they arrive. What was sent fast before earns no more time than `MAX_BEHIND_SECONDS`."""

    def __init__(self, pieces: AsyncIterator[PieceT], size: Callable[[PieceT], int]) -> None:
        """`size` returns the bytes of a piece."""
        self._pieces = pieces
        self._size = size
        self._seconds_left = MAX_BEHIND_SECONDS

    async def next(self) -> PieceT | None:
        """Returns the next piece, or None after the last. Raises InvalidRequest if it comes too late."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._seconds_left):
                piece = await anext(self._pieces, None)
        except TimeoutError:
            message = (
                f"expected the rest of the body at {MIN_BYTES_PER_SECOND >> 10} KiB/s or faster, got less for"
                f" {MAX_BEHIND_SECONDS:g} seconds"
            )
            raise InvalidRequest("", message, "request_timeout") from None
        earned = 0.0 if piece is None else self._size(piece) / MIN_BYTES_PER_SECOND
        self._seconds_left = min(MAX_BEHIND_SECONDS, self._seconds_left - (loop.time() - began) + earned)
        return piece


@lru_cache
def _encoded_type(content_type: str) -> bytes:
    return HttpBody(content_type=content_type).SerializeToString()


def encoded_body(content_type: str, data: bytes) -> bytes:
    """Returns an HttpBody in protobuf's encoding, in a quarter of the time to make and serialize one.

    Fields follow each other (https://protobuf.dev/programming-guides/encoding). `data` is not empty.
    """
    length, num_left = bytearray(), len(data)
    while num_left >= 0x80:
        length.append(num_left & 0x7F | 0x80)
        num_left >>= 7
    length.append(num_left)
    return b"%b\x12%b%b" % (_encoded_type(content_type), length, data)


async def collect(chunks: AsyncIterator[HttpBody], reservation: BodyReservation, *, max_bytes: int) -> list[bytes]:
    """Returns the pieces of the whole body, whose memory it reserves: joining large ones takes time.

    Raises:
        InvalidRequest: the body is larger than `max_bytes` or than what is left for bodies, its content type is not
            JSON, or it comes too slowly.
    """
    body, kept = _paced(chunks), list[bytes]()
    num_bytes = 0
    refusal: tuple[str, str] | None = None
    while (chunk := await body.next()) is not None and num_bytes <= 2 * max_bytes:
        refusal = refusal or _refusal(reservation, chunk, num_bytes, max_bytes)
        num_bytes += len(chunk.data)
        if refusal is None:
            kept.append(chunk.data)
        else:
            kept.clear()
            reservation.release()
    # Refused only now: a client that sends its whole body before it reads would see a closed connection and no error.
    if refusal is not None:
        raise InvalidRequest("", *refusal)
    return kept


async def discard(chunks: AsyncIterator[object]) -> None:
    """Reads the body of a request that is refused, while it comes.

    A client that sends its whole body before it reads would see a closed connection and no error.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + _MAX_DISCARD_SECONDS
    with suppress(TimeoutError):
        while loop.time() < ends:
            async with asyncio.timeout(_MAX_SILENT_SECONDS):
                if await anext(chunks, None) is None:
                    return


async def read_lines(chunks: AsyncIterator[HttpBody], *, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yields the lines of a body as they arrive, without empty ones.

    Raises:
        InvalidRequest: a line is larger than `max_bytes`, the content type is not JSON, or it comes too slowly.
    """
    body, line, is_first = _paced(chunks), bytearray(), True
    while (chunk := await body.next()) is not None:
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


def _paced(chunks: AsyncIterator[HttpBody]) -> PacedBody[HttpBody]:
    return PacedBody(chunks, lambda chunk: len(chunk.data))


def _refusal(
    reservation: BodyReservation, chunk: HttpBody, num_bytes_before: int, max_bytes: int
) -> tuple[str, str] | None:
    """Returns message and reason if a chunk is refused. Reserves its bytes otherwise."""
    if num_bytes_before + len(chunk.data) > max_bytes:
        return f"The body is larger than {max_bytes} bytes.", "request_too_large"
    try:
        _check_content_type(chunk.content_type, is_first=num_bytes_before == 0)
        reservation.reserve(len(chunk.data))
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
