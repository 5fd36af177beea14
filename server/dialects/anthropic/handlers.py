"""The methods behind Anthropic's Messages API: conversations are parsed and answered as ChatService's are."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.dialects.anthropic.request import shows_thinking, to_chat, to_count
from glimpse.server.dialects.anthropic.response import EventRenderer, render_message
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.chat import check_bounds
from glimpse.server.render.chat import rendering_size
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.server.services.chat import ChatHandlers
from glimpse.streams import Stream
from glimpse.v1 import chat_pb2

_Event = anthropic_pb2.StreamMessageResponse | TextChunk
_Request = TypeVar("_Request", bound=Message)
_ChatRequest = TypeVar("_ChatRequest", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesHandlers:
    """Methods of MessagesService."""

    chat: ChatHandlers

    async def create(
        self, request: anthropic_pb2.CreateMessageRequest, call: CallContext
    ) -> anthropic_pb2.CreateMessageResponse:
        message, chat = await call.parse(self._begin, request, call, streaming=False)
        render = partial(render_message, shows_thinking=shows_thinking(request.thinking))
        del request  # which has the media's bytes
        deltas, usage = await self.chat.generator.complete(chat.generation, call)
        await run_sized(call.client, rendering_size(deltas), render, message, deltas, usage)
        return message

    def stream(self, request: anthropic_pb2.CreateMessageRequest, call: CallContext) -> Stream[_Event]:
        """StreamMessage."""
        return Stream(partial(self._stream, request, call))

    async def _stream(
        self, request: anthropic_pb2.CreateMessageRequest, call: CallContext, own: Stream[_Event]
    ) -> AsyncGenerator[_Event, None]:
        message, chat = await call.parse(self._begin, request, call, streaming=True)
        usage = Usage()
        renderer = EventRenderer(message, usage, shows_thinking=shows_thinking(request.thinking))
        del request  # which has the media's bytes
        async with aclosing(self.chat.generator.generate(chat.generation, call, usage)) as deltas:
            if own.receiver is not None:
                deltas.receiver = own.receiver.of_each(renderer.render)
            async for delta in deltas:
                for event in renderer.render(delta):
                    yield event

    async def count_tokens(
        self, request: anthropic_pb2.CountMessageTokensRequest, call: CallContext
    ) -> anthropic_pb2.CountMessageTokensResponse:
        count = await call.parse(self._begin_count, request, call)
        del request  # which has the media's bytes
        counted = await self.chat.count_tokens(count, call)
        return anthropic_pb2.CountMessageTokensResponse(input_tokens=counted.prompt_tokens)

    def _begin(
        self, request: anthropic_pb2.CreateMessageRequest, call: CallContext, *, streaming: bool
    ) -> tuple[anthropic_pb2.CreateMessageResponse, ChatRequest]:
        head, chat = self.chat.begin(_adapt(to_chat, request, call), call, streaming=streaming)
        return anthropic_pb2.CreateMessageResponse(id=f"msg_{call.request_id}", model=head.model), chat

    def _begin_count(
        self, request: anthropic_pb2.CountMessageTokensRequest, call: CallContext
    ) -> chat_pb2.CountTokensRequest:
        return _adapt(to_count, request, call)


def _adapt(
    adapt: Callable[[_Request, dict[str, str]], _ChatRequest], request: _Request, call: CallContext
) -> _ChatRequest:
    """Returns a request of ChatService. The call learns its paths at the end: errors until then name what was sent."""
    check_bounds(request)
    adapted: dict[str, str] = {}
    chat = adapt(request, adapted)
    call.adapted |= adapted
    return chat
