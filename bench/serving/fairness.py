"""Time to first token of one client while two others flood the server, against its value when it is alone.

    glimpse serve --port 50051 &
    python -m bench.serving.fairness --target 127.0.0.1:50051

One client sends two requests for 128 completions each, another 500 streams, all of which generate until the end. With
--long-prompts, one client sends prompts of about 2500 words for a token each instead, 8 at a time. With --batch, a
batch of prompts of up to 300 words is answered instead. The floods run in a process of their own, as other clients
would. Each client has an API key of its own; with --one-client they
share one, so that only requests are told apart.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Coroutine, Sequence
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
import uvloop

from bench.figures import percentile
from bench.serving.words import COMMON, common_text
from glimpse.v1 import (
    batch_pb2,
    batch_pb2_grpc,
    chat_pb2,
    chat_pb2_grpc,
    content_pb2,
    generation_pb2,
    media_pb2,
    media_pb2_grpc,
)

_NUM_WIDE = 2
_COMPLETIONS = 128
_LONG_TOKENS = 8000
_SHORT_TOKENS = 8
_NUM_LONG_PROMPTS = 8
_PROMPT_WORDS = 2500
_BATCH_WORDS = 300
_BATCH_TOKENS = 100
_ENDPOINT = "/v1/chat/completions"


def _request(text: str, *, max_tokens: int, num_completions: int = 1) -> chat_pb2.CreateChatCompletionRequest:
    part = content_pb2.ContentPart(text=text)
    return chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=[part])],
        generation=generation_pb2.GenerationOptions(
            max_completion_tokens=max_tokens, ignore_eos=max_tokens == _LONG_TOKENS, n=num_completions, temperature=1.0
        ),
    )


class Clients:
    """Clients with keys of their own, on connections of their own."""

    def __init__(self, target: str, *, share_key: bool) -> None:
        self._target = target
        self._share_key = share_key
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.num_characters = 0
        """Characters of all answers so far."""
        self.num_answers = 0

    async def ask(self, name: str, request: chat_pb2.CreateChatCompletionRequest) -> float:
        """Streams an answer to its end. Returns the seconds to its first token."""
        stub = chat_pb2_grpc.ChatServiceStub(self._channel(name))
        begun, first = time.perf_counter(), None
        async for chunk in stub.StreamChatCompletion(request, metadata=self._metadata(name)):
            first = first or time.perf_counter()
            self.num_characters += sum(len(choice.delta.content) for choice in chunk.choices)
        self.num_answers += 1
        return (first or time.perf_counter()) - begun

    async def answer_batch(self, name: str, lines: Sequence[str]) -> None:
        """Has a batch answered, and cancels it if this call is cancelled."""
        metadata, channel = self._metadata(name), self._channel(name)
        media, batches = media_pb2_grpc.MediaServiceStub(channel), batch_pb2_grpc.BatchServiceStub(channel)
        header = media_pb2.UploadMediaRequest(header=media_pb2.UploadHeader(purpose="batch"))
        chunk = media_pb2.UploadMediaRequest(chunk="\n".join(lines).encode())
        upload = (await media.UploadMedia(iter((header, chunk)), metadata=metadata)).media
        asked = batch_pb2.CreateBatchRequest(input_file_id=upload.upload_id, endpoint=_ENDPOINT, completion_window="1h")
        batch_id = (await batches.CreateBatch(asked, metadata=metadata)).batch.batch_id
        try:
            while self.num_answers < len(lines):
                found = await batches.GetBatch(batch_pb2.GetBatchRequest(batch_id=batch_id), metadata=metadata)
                self.num_answers = found.batch.request_counts.completed
                await asyncio.sleep(0.2)
        finally:
            await batches.CancelBatch(batch_pb2.CancelBatchRequest(batch_id=batch_id), metadata=metadata)

    def _channel(self, name: str) -> grpc.aio.Channel:
        if name not in self._channels:
            options = [("grpc.use_local_subchannel_pool", 1)]
            self._channels[name] = grpc.aio.insecure_channel(self._target, options=options)
        return self._channels[name]

    def _metadata(self, name: str) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {'shared' if self._share_key else name}")]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


async def _ask_often(clients: Clients, count: int, words: str) -> list[float]:
    seconds: list[float] = []
    for index in range(count):
        seconds.append(await clients.ask("third", _request(f"{words} {index}: what is it?", max_tokens=_SHORT_TOKENS)))
        await asyncio.sleep(0.05)
    return seconds


async def _send_long_prompts(clients: Clients, index: int) -> None:
    """Sends one long prompt after the other, without end."""
    draw = random.Random(index)
    while True:
        text = " ".join(draw.choice(COMMON) for _ in range(_PROMPT_WORDS))
        await clients.ask("prompts", _request(text, max_tokens=1))


def _batch_lines(num: int) -> list[str]:
    """Returns requests of a batch, with answers of equal length."""
    draw, lines = random.Random(0), list[str]()
    for index in range(num):
        message = {"role": "user", "content": common_text(draw, draw.randint(10, _BATCH_WORDS))}
        body = {"messages": [message], "max_tokens": _BATCH_TOKENS, "ignore_eos": True}
        lines.append(json.dumps({"custom_id": str(index), "method": "POST", "url": _ENDPOINT, "body": body}))
    return lines


def _floods(clients: Clients, arguments: argparse.Namespace) -> list[Coroutine[Any, Any, object]]:
    if arguments.long_prompts:
        return [_send_long_prompts(clients, index) for index in range(_NUM_LONG_PROMPTS)]
    if arguments.batch:
        return [clients.answer_batch("batch", _batch_lines(arguments.batch))]
    wide = [
        _request(f"count {index}", max_tokens=_LONG_TOKENS, num_completions=_COMPLETIONS) for index in range(_NUM_WIDE)
    ]
    streams = [_request(f"tell {index}", max_tokens=_LONG_TOKENS) for index in range(arguments.streams)]
    return [*(clients.ask("wide", each) for each in wide), *(clients.ask("streams", each) for each in streams)]


async def _measure_third(arguments: argparse.Namespace, floods: Connection) -> tuple[list[float], list[float]]:
    """Returns the third client's times to first token, alone and beside the floods, which `floods` controls."""
    clients = Clients(arguments.target, share_key=arguments.one_client)
    await _ask_often(clients, 3, "warm")
    quiet = await _ask_often(clients, arguments.requests, "quiet")
    floods.send("begin")
    await asyncio.sleep(arguments.settle_seconds)
    floods.send("measure")
    loaded = await _ask_often(clients, arguments.requests, "loaded")
    floods.send("end")
    await clients.close()
    return quiet, loaded


async def _flood(arguments: argparse.Namespace, orders: Connection) -> None:
    """Floods the server from "begin" to "end", and prints what was answered from "measure" on."""
    clients = Clients(arguments.target, share_key=arguments.one_client)
    coroutines = _floods(clients, arguments)
    await asyncio.to_thread(orders.recv)
    floods = [asyncio.create_task(each) for each in coroutines]
    await asyncio.to_thread(orders.recv)
    begun, num_before, num_answers = time.perf_counter(), clients.num_characters, clients.num_answers
    await asyncio.to_thread(orders.recv)
    seconds = time.perf_counter() - begun
    rate, answer_rate = (clients.num_characters - num_before) / seconds, (clients.num_answers - num_answers) / seconds
    num_ended = sum(task.done() for task in floods)
    for task in floods:
        task.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    await clients.close()
    ended = f"{num_ended} of {len(floods)} requests ended before the measurement did"
    print(f"floods: {rate:.0f} characters/s, {answer_rate:.1f} answers/s; {ended}")


def _run_floods(arguments: argparse.Namespace, orders: Connection) -> None:
    uvloop.run(_flood(arguments, orders))


def _describe(name: str, seconds: Sequence[float]) -> str:
    median, p95 = 1000 * statistics.median(seconds), 1000 * percentile(seconds, 0.95)
    return f"{name}: median {median:.0f} ms, p95 {p95:.0f} ms, most {1000 * max(seconds):.0f} ms"


def main() -> None:
    """Parses the command line and prints both distributions and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:50051", help="host and port of gRPC")
    parser.add_argument("--streams", type=int, default=500, help="streams of the second client")
    parser.add_argument("--long-prompts", action="store_true", help="flood with long prompts in place of streams")
    parser.add_argument(
        "--batch", type=int, default=0, help="flood with a batch of so many requests in place of streams"
    )
    parser.add_argument("--requests", type=int, default=20, help="of the third client, before and during the floods")
    parser.add_argument("--settle-seconds", type=float, default=20.0, help="from the floods to the measurement")
    parser.add_argument("--one-client", action="store_true", help="send the same key everywhere")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    floods = context.Process(target=_run_floods, args=(arguments, theirs), daemon=True)
    floods.start()
    quiet, loaded = uvloop.run(_measure_third(arguments, ours))
    floods.join()
    print(_describe("quiet", quiet))
    print(_describe("loaded", loaded))
    print(f"ratio of medians: {statistics.median(loaded) / statistics.median(quiet):.1f}")


if __name__ == "__main__":
    main()
