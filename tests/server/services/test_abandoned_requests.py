"""Requests that end before their usage is known are charged what the engine has computed of their prompts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from glimpse.identity.api_keys import KeyOwner, key_line
from glimpse.server.settings import AccessSettings
from glimpse.v1 import chat_pb2_grpc, embedding_pb2, embedding_pb2_grpc
from tests.e2e.stack import read_metric
from tests.engine.replies import HELD, reply_with
from tests.engine.scripted_engine import HELD_TOKENS
from tests.server.requests import request, user
from tests.server.serving import echoing
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS_PER_MINUTE = 100
HELD_TEXT = reply_with(HELD)
Begin = Callable[[grpc.aio.Channel, Any], Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Any, int]]:
    """A channel, and the port of the metrics."""
    folder = tmp_path_factory.mktemp("abandoned")
    keys, limits = folder / "keys", folder / "tenants.toml"
    keys.write_text("\n".join(key_line(name, KeyOwner(tenant=name)) for name in ("chat", "completions", "embeddings")))
    limits.write_text(f"[default]\ntokens_per_minute = {TOKENS_PER_MINUTE}\n")
    access = AccessSettings(api_keys=keys, tenants=limits)
    async with echoing(tiny_checkpoint, access=access) as (running, channel):
        yield channel, running.metrics_port


def chat(channel: grpc.aio.Channel, metadata: Any) -> Any:
    return chat_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(request(user(HELD_TEXT)), metadata=metadata)


def completions(channel: grpc.aio.Channel, metadata: Any) -> Any:
    wire = request(user(HELD_TEXT), n=3)
    return chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(wire, metadata=metadata)


def embeddings(channel: grpc.aio.Channel, metadata: Any) -> Any:
    wire = embedding_pb2.CreateEmbeddingsRequest(inputs=[embedding_pb2.EmbeddingInput(text=HELD_TEXT)])
    return embedding_pb2_grpc.EmbeddingServiceStub(channel).CreateEmbeddings(wire, metadata=metadata)


async def delay_seconds(channel: grpc.aio.Channel, metadata: Any) -> float:
    """Sends a small request. Returns after which delay it may be sent again; 0 if it was answered."""
    try:
        await chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(request(), metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return float(dict(error.trailing_metadata() or ())["retry-after"])
    return 0.0


def num_waiting(metrics_port: int) -> float:
    return read_metric(metrics_port, "glimpse_waiting_sequences")


async def becomes(condition: Callable[[], bool]) -> None:
    await until(lambda: asyncio.to_thread(condition))


@pytest.mark.parametrize("begin", [chat, completions, embeddings])
async def test_cancelled_before_the_first_token_is_charged_what_was_computed(
    server: tuple[grpc.aio.Channel, int], begin: Begin
):
    channel, metrics_port = server
    metadata = (("x-api-key", begin.__name__),)
    call = begin(channel, metadata)
    await becomes(lambda: num_waiting(metrics_port) > 0)
    call.cancel()
    await becomes(lambda: num_waiting(metrics_port) == 0)
    seconds = await delay_seconds(channel, metadata)
    charged = TOKENS_PER_MINUTE + seconds * TOKENS_PER_MINUTE / 60
    assert HELD_TOKENS <= charged <= HELD_TOKENS + 2 * TOKENS_PER_MINUTE, "once, not for each completion"
