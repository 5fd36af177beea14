"""Bodies arrive at a least rate, or the request ends."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.media.cache.fair_share import FairCapacity
from glimpse.server.call.body_budget import BodyReservation
from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.http_bodies import MIN_BYTES_PER_SECOND, PacedBody, collect, encoded_body


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.server.rpc.http_bodies.MAX_BEHIND_SECONDS", 1.5)


async def drip(num_pieces: int, piece: bytes) -> AsyncIterator[bytes]:
    for _ in range(num_pieces):
        yield piece
        await asyncio.sleep(0.1)


async def read(pieces: AsyncIterator[bytes]) -> bytes:
    body, data = PacedBody(pieces, len), b""
    while (piece := await body.next()) is not None:
        data += piece
    return data


async def test_drops_earn_no_time():
    """A byte now and then would otherwise keep in memory what came before, for an hour."""
    with pytest.raises(InvalidRequest, match="at 16 KiB/s or faster") as caught:
        await read(drip(1 << 20, b"x"))
    assert caught.value.reason == "request_timeout"


async def test_a_fast_beginning_earns_no_time_for_later():
    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(100 * MIN_BYTES_PER_SECOND)
        async for piece in drip(1 << 20, b"x"):
            yield piece

    with pytest.raises(InvalidRequest):
        await read(pieces())


async def test_a_slow_body_that_keeps_the_rate_is_read_whole():
    assert len(await read(drip(20, bytes(MIN_BYTES_PER_SECOND)))) == 20 * MIN_BYTES_PER_SECOND


@pytest.mark.parametrize("num_bytes", [1, 127, 128, 16_383, 16_384, 1 << 21])
def test_responses_are_encoded_as_protobuf_does(num_bytes: int):
    body = HttpBody(content_type="text/event-stream", data=bytes(num_bytes))
    assert encoded_body(body.content_type, body.data) == body.SerializeToString()


async def test_a_body_of_another_type_is_read_before_it_is_refused() -> None:
    """A client that sends its whole body before it reads would see a closed connection."""
    pieces, reservation = [HttpBody(data=bytes(100)) for _ in range(10)], BodyReservation(FairCapacity(), "a")

    async def chunks() -> AsyncIterator[HttpBody]:
        while pieces:
            yield pieces.pop()

    with pytest.raises(
        InvalidRequest, match=r"^The body must be application/json, but the request has no content type"
    ):
        await collect(chunks(), reservation, max_bytes=1000)
    assert (len(pieces), reservation.num_bytes) == (0, 0)
