"""Clients that stream answers and record when each chunk arrives.

One uses OpenAI's REST over plain HTTP, the other typed gRPC. They parse chunks only after the last one, to use little
CPU time: the server under test runs on the same cores.
"""

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import aiohttp
import grpc
import grpc.aio

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2

_TIMEOUT_SECONDS = 1800.0
_ROLES = {"user": content_pb2.ROLE_USER, "assistant": content_pb2.ROLE_ASSISTANT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation."""

    role: str
    """user or assistant"""
    text: str
    image: bytes | None = None
    """A JPEG, placed before the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer and its timing; times are `time.perf_counter`'s."""

    asked_at: float
    token_times: tuple[float, ...]
    """The arrival of each chunk of text, one or several tokens."""
    text: str
    prompt_tokens: int
    """From the server's usage; 0 if absent. So are the next two."""
    output_tokens: int
    """The number of chunks if the server reports no usage."""
    cached_tokens: int

    @property
    def first_token_seconds(self) -> float:
        return self.token_times[0] - self.asked_at

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time per token after the first; None for a single token."""
        if self.output_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)


class AskError(Exception):
    """The server refused the request, failed, or sent no token."""


class Client(Protocol):
    """A client of one server."""

    async def ask(self, turns: Sequence[Turn], *, max_tokens: int) -> Answer:
        """Sends one question and reads the whole answer. Raises AskError."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...


def make_client(target: str, *, model: str | None, ignore_eos: bool) -> Client:
    """Returns a client; enter it before use.

    Args:
        target: an OpenAI base URL, such as http://127.0.0.1:8080/v1, or a gRPC one: grpc://127.0.0.1:50051.
        model: the name to ask for; None takes the first that the server lists.
        ignore_eos: answers continue to their maximum length.
    """
    if target.startswith("grpc://"):
        return GrpcClient(target.removeprefix("grpc://"), model=model, ignore_eos=ignore_eos)
    return OpenAIClient(target.rstrip("/"), model=model, ignore_eos=ignore_eos)


class OpenAIClient:
    """Asks over /chat/completions with server-sent events."""

    def __init__(self, url: str, *, model: str | None, ignore_eos: bool) -> None:
        self._url = url
        self._model = model
        # Servers differ in how they treat unknown fields, so send it only on request.
        self._extra = {"ignore_eos": True} if ignore_eos else {}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        if self._model is None:
            async with self._session.get(f"{self._url}/models") as response:
                self._model = str((await response.json())["data"][0]["id"])
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def ask(self, turns: Sequence[Turn], *, max_tokens: int) -> Answer:
        body = json.dumps(self._document(turns, max_tokens)).encode()
        asked_at = time.perf_counter()
        try:
            try:
                pieces = await self._post(body)
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                # Servers close idle connections after seconds, possibly as the request arrives. The next is a new one.
                pieces = await self._post(body)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AskError(f"{type(error).__name__}: {error}") from error
        return read_answer(asked_at, read_events(pieces))

    async def _post(self, body: bytes) -> list[tuple[float, bytes]]:
        """Returns the pieces of a streamed answer with their arrival times."""
        headers = {"content-type": "application/json"}
        async with self._session.post(f"{self._url}/chat/completions", data=body, headers=headers) as response:
            if response.status != 200:
                raise AskError(f"HTTP {response.status}: {(await response.text())[:300]}")
            return [(time.perf_counter(), data) async for data in response.content.iter_any()]

    def _document(self, turns: Sequence[Turn], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": [_message(turn) for turn in turns],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }


class GrpcClient:
    """Asks Glimpse's ChatService."""

    def __init__(self, target: str, *, model: str | None, ignore_eos: bool) -> None:
        self._target = target
        self._model = model
        self._ignore_eos = ignore_eos

    async def __aenter__(self) -> Self:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(self._target, options=options)
        self._stub: Any = chat_pb2_grpc.ChatServiceStub(self._channel)  # generated for both kinds of channel, untyped
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._channel.close()

    async def ask(self, turns: Sequence[Turn], *, max_tokens: int) -> Answer:
        request = chat_pb2.CreateChatCompletionRequest(
            model=self._model,
            messages=[_typed_message(turn) for turn in turns],
            generation=generation_pb2.GenerationOptions(
                temperature=0, max_completion_tokens=max_tokens, ignore_eos=self._ignore_eos
            ),
            stream_options=chat_pb2.StreamOptions(include_usage=True),
        )
        asked_at = time.perf_counter()
        try:
            chunks = [(time.perf_counter(), chunk) async for chunk in self._stub.StreamChatCompletion(request)]
        except grpc.RpcError as error:
            raise AskError(str(error)) from error
        return read_answer(asked_at, ((at, _as_document(chunk)) for at, chunk in chunks))


def read_events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yields the JSON documents of a stream of server-sent events, each with its arrival time."""
    rest = b""
    for at, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            field, _, value = line.partition(b":")
            if field == b"data" and value.strip() != b"[DONE]":
                yield at, json.loads(value)


def read_answer(asked_at: float, chunks: Iterable[tuple[float, Mapping[str, Any]]]) -> Answer:
    """Builds an answer from OpenAI chunks. Raises AskError if they contain no token."""
    times: list[float] = []
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    for at, chunk in chunks:
        if "error" in chunk:
            raise AskError(str(chunk["error"]))
        usage = chunk.get("usage") or usage
        text = "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
        if text:
            times.append(at)
            texts.append(text)
    if not times:
        raise AskError("the answer has no text")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        asked_at=asked_at,
        token_times=tuple(times),
        text="".join(texts),
        prompt_tokens=usage.get("prompt_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or len(times),
        cached_tokens=details.get("cached_tokens") or 0,
    )


def _message(turn: Turn) -> dict[str, Any]:
    if turn.image is None:
        return {"role": turn.role, "content": turn.text}
    url = "data:image/jpeg;base64," + base64.b64encode(turn.image).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    return {"role": turn.role, "content": [image, {"type": "text", "text": turn.text}]}


def _typed_message(turn: Turn) -> content_pb2.Message:
    parts = [content_pb2.ContentPart(text=turn.text)]
    if turn.image is not None:
        source = content_pb2.MediaSource(data=turn.image)
        parts.insert(0, content_pb2.ContentPart(image=content_pb2.ImagePart(source=source)))
    return content_pb2.Message(role=_ROLES[turn.role], content=parts)


def _as_document(chunk: chat_pb2.StreamChatCompletionResponse) -> dict[str, Any]:
    usage = chunk.usage
    details = {"cached_tokens": usage.prompt_tokens_details.cached_tokens}
    counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return {
        "choices": [{"delta": {"content": choice.delta.content}} for choice in chunk.choices],
        "usage": {**counts, "prompt_tokens_details": details} if chunk.HasField("usage") else None,
    }
