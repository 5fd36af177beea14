"""Messages arrive unchanged at the other end of the socket."""

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from glimpse import frames
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol import transport
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.media import Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol.messages import (
    Cancel,
    Failed,
    FinishReason,
    FromEngine,
    Generate,
    Loading,
    MediaInput,
    Ready,
    RequestStats,
    Start,
    Step,
    StepStats,
    Stop,
    ToEngine,
    TokenEvent,
    TokenLogprobs,
)
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.protocol.transport import FROM_ENGINE, Channel
from glimpse.frames import AsyncChannel, MessageTooLargeError, TransportError
from glimpse.media.kind import MediaKind

STATS = StepStats(
    num_running=1,
    num_waiting=2,
    num_used_blocks=3,
    num_prompt_tokens=4,
    num_generated_tokens=5,
    num_cached_tokens=6,
    num_encoded_media=7,
    num_preemptions=8,
    step_seconds=0.25,
)


def generate(content: MediaContent) -> Generate:
    span = MediaSpan(kind=MediaKind.IMAGE, start=1, num_tokens=2, key=bytes(range(32)), grid=(1, 2, 4))
    return Generate(
        request_id="r1",
        token_ids=[1, 2, 2, 70_000],
        media=[MediaInput(span=span, content=content)],
        sampling=SamplingParams(
            temperature=0.5, stop=("a", "é"), stop_token_ids=(3,), logit_bias={7: -1.5}, logprobs=2
        ),
        priority=-1,
        cache_salt="salt",
    )


TO_ENGINE: list[ToEngine] = [
    Start(config=EngineConfig(model_path="folder", max_model_len=77, device="cpu")),
    generate(memoryview(bytes(range(48)))),
    generate(Embeddings(dtype="bfloat16", data=memoryview(bytes(range(8))))),
    Generate(request_id="plain", token_ids=[1], sampling=SamplingParams()),
    Cancel(request_id="r1"),
    Stop(),
]
FROM_THE_ENGINE: list[FromEngine] = [
    Loading(stage="reading", fraction=0.5),
    Ready(device="cpu", dtype="float32", max_model_len=77, num_blocks=8, block_size=32, load_seconds=1.5),
    Failed(message="no such folder"),
    Step(events=[], stats=STATS),
    Step(
        events=[
            TokenEvent(
                request_id="r1",
                token_ids=[5],
                logprobs=[TokenLogprobs(logprob=-0.5, top=[(5, -0.5)])],
                stats=RequestStats(num_cached_tokens=3, encoded_media=[1]),
            ),
            TokenEvent(request_id="r2", finish=FinishReason.ERROR, error=EngineErrorCode.OVERLOADED, message="full"),
        ],
        stats=STATS,
    ),
]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    front, engine = socket.socketpair()
    with front, engine:
        yield front, engine


async def received(channel: Channel) -> ToEngine | None:
    try:
        return await asyncio.to_thread(channel.receive)
    except BaseException:
        # Otherwise the thread would wait forever, and the event loop for the thread.
        channel.shutdown()
        raise


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
async def test_messages_to_the_engine_round_trip(ends: tuple[socket.socket, socket.socket], message: ToEngine) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    front.post(message)
    assert await received(Channel(ends[1])) == message
    await front.close()


@pytest.mark.parametrize("message", FROM_THE_ENGINE, ids=lambda message: type(message).__name__)
async def test_messages_from_the_engine_round_trip(
    ends: tuple[socket.socket, socket.socket], message: FromEngine
) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    Channel(ends[1]).send(message)
    assert await front.receive() == message
    await front.close()


async def test_posted_messages_arrive_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    front, engine = await AsyncChannel.connect(ends[0], FROM_ENGINE), Channel(ends[1])
    for message in TO_ENGINE * 50:
        front.post(message)
    assert [await received(engine) for _ in TO_ENGINE * 50] == TO_ENGINE * 50
    await front.close()


async def test_long_message_is_written_in_slices(ends: tuple[socket.socket, socket.socket]) -> None:
    front, engine = await AsyncChannel.connect(ends[0], FROM_ENGINE), Channel(ends[1])
    transport_below = front._writer.transport  # pyright: ignore[reportPrivateUsage]  # the event loop's own buffer
    message = generate(memoryview(bytes(64 << 20)))
    front.post(message)
    front.post(Stop())
    receiving = asyncio.create_task(received(engine))
    _, high_water = transport_below.get_write_buffer_limits()
    most = 0
    while not receiving.done():
        most = max(most, transport_below.get_write_buffer_size())
        await asyncio.sleep(0)
    # A slice is written once the buffered rest of earlier ones is below the mark.
    assert most <= (1 << 20) + high_water
    assert receiving.result() == message
    assert await received(engine) == Stop()
    await front.close()


async def test_pixels_are_views_into_the_received_message(ends: tuple[socket.socket, socket.socket]) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    front.post(generate(memoryview(bytes(48))))
    message = await received(Channel(ends[1]))
    assert isinstance(message, Generate)
    pixels = message.media[0].content
    assert isinstance(pixels, memoryview)
    assert isinstance(pixels.obj, bytearray)
    assert len(pixels.obj) > len(pixels)
    await front.close()


async def test_front_end_reads_a_message_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    receiving = asyncio.create_task(front.receive())
    for byte in _frame_bytes(FROM_THE_ENGINE[-1]):
        ends[1].send(bytes([byte]))
        await asyncio.sleep(0)
    assert await receiving == FROM_THE_ENGINE[-1]
    await front.close()


def test_engine_reads_a_message_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    frame = _frame_bytes(TO_ENGINE[1])

    def send() -> None:
        for start in range(0, len(frame), 3):
            ends[0].send(frame[start : start + 3])

    thread = threading.Thread(target=send)
    thread.start()
    assert Channel(ends[1]).receive() == TO_ENGINE[1]
    thread.join()


@pytest.mark.parametrize("num_bytes", [0, 2, 9])
async def test_end_of_stream_is_none_even_within_a_message(
    ends: tuple[socket.socket, socket.socket], num_bytes: int
) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    ends[1].sendall(_frame_bytes(FROM_THE_ENGINE[0])[:num_bytes])
    ends[1].close()
    assert await front.receive() is None
    await front.close()


@pytest.mark.parametrize("num_bytes", [0, 2, 9])
def test_engine_sees_the_end_of_the_stream(ends: tuple[socket.socket, socket.socket], num_bytes: int) -> None:
    ends[0].sendall(_frame_bytes(TO_ENGINE[0])[:num_bytes])
    ends[0].close()
    assert Channel(ends[1]).receive() is None


async def test_engine_exit_with_unread_messages_is_end_of_stream(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    front.post(generate(memoryview(bytes(8 << 20))))
    await asyncio.sleep(0.01)
    ends[1].close()
    assert await front.receive() is None
    front.post(Stop())
    await front.close()
    await front.close()


def test_front_end_exit_with_unread_messages_is_end_of_stream(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    engine = Channel(ends[1])
    engine.send(FROM_THE_ENGINE[0])
    ends[0].close()
    assert engine.receive() is None
    with pytest.raises(ConnectionError):
        engine.send(FROM_THE_ENGINE[0])


async def test_message_over_the_limit_is_not_sent(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1000)
    monkeypatch.setattr(transport.TO_ENGINE, "max_bytes", 1000)
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    with pytest.raises(MessageTooLargeError, match=r"1\d\d\d bytes; at most 1000"):
        front.post(generate(memoryview(bytes(1000))))
    with pytest.raises(MessageTooLargeError):
        Channel(ends[1]).send(Failed(message="x" * 1000))
    front.post(Stop())
    assert await received(Channel(ends[1])) == Stop()
    await front.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<I", (256 << 20) + 1), "got 268435457"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "does not follow the protocol"),
        (struct.pack("<I", 1) + b"\x80", "does not follow the protocol"),
    ],
    ids=["too long", "not msgpack", "unknown type"],
)
async def test_both_ends_refuse_invalid_messages(
    ends: tuple[socket.socket, socket.socket], data: bytes, message: str
) -> None:
    front = await AsyncChannel.connect(ends[0], FROM_ENGINE)
    ends[1].sendall(data)
    with pytest.raises(TransportError, match=message):
        await front.receive()
    await front.close()
    other, engine = socket.socketpair()
    with other, engine:
        other.sendall(data)
        with pytest.raises(TransportError, match=message):
            Channel(engine).receive()


@pytest.mark.parametrize(
    "module",
    ["glimpse.engine.client.engine_client", "glimpse.engine.protocol.transport", "glimpse.engine.protocol.messages"],
)
def test_front_end_side_loads_no_torch(module: str) -> None:
    code = f"import {module}, sys; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def _frame_bytes(message: ToEngine | FromEngine) -> bytes:
    near, far = socket.socketpair()
    with near, far:
        Channel(near).send(message)  # pyright: ignore[reportArgumentType]  # frames are the same in both directions
        return far.recv(1 << 16)
