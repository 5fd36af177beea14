"""Requests for many long completions do not keep the engine from others, whoever sends them."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from glimpse.v1 import chat_pb2_grpc
from tests.e2e.stack import Served
from tests.server.requests import request, user
from tests.server.serving import served
from tests.waiting import eventually

ENDLESS = {"ignore_eos": True, "max_completion_tokens": 3500}


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tiny_checkpoint, tmp_path_factory.mktemp("fair"), "--max-sequences=8") as running:
        yield running


@pytest.mark.parametrize("key", ["Bearer wide", "Bearer other"], ids=["same client", "other client"])
def test_wide_requests_leave_others_their_share(server: Served, key: str) -> None:
    with server.channel() as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        wide = [
            chat.StreamChatCompletion(request(user(name), n=8, **ENDLESS), metadata=[("authorization", "Bearer wide")])
            for name in ("one", "two")
        ]
        assert eventually(lambda: server.metric("glimpse_running_sequences") == 8)
        for index in range(3):
            answer = chat.CreateChatCompletion(request(user(f"{index}")), metadata=[("authorization", key)], timeout=30)
            assert answer.usage.completion_tokens
        # Without shares, the first answer would come after the 16 long completions.
        assert server.metric("glimpse_waiting_sequences") >= 8
        for stream in wide:
            stream.cancel()
            with pytest.raises(grpc.RpcError):
                list(stream)
        assert eventually(lambda: server.metric("glimpse_running_sequences") == 0)
