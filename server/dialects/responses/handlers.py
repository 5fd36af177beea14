"""The methods behind OpenAI's Responses API: conversations are parsed and answered as ChatService's are."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import grpc

from glimpse.openai.v1 import responses_pb2
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.dialects.responses.request import to_chat
from glimpse.server.dialects.responses.response import ResponseRenderer, begin_response, render_response
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.chat import check_bounds
from glimpse.server.render.chat import rendering_size
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.errors import to_status
from glimpse.server.rpc.failure import FailedRpcError
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.server.services.chat import ChatHandlers


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesHandlers:
    """Methods of ResponsesService."""

    chat: ChatHandlers

    async def create(self, request: responses_pb2.CreateResponseRequest, call: CallContext) -> responses_pb2.Response:
        """CreateResponse."""
        response, chat = await call.parse(self._begin, request, call, streaming=False)
        del request  # which has the media's bytes
        usage = Usage()
        async with aclosing(self.chat.generator.generate(chat.generation, call, usage)) as stream:
            deltas = [delta async for delta in stream]
        await run_sized(call.client, rendering_size(deltas), render_response, response, deltas, usage)
        return response

    async def stream(
        self, request: responses_pb2.CreateResponseRequest, call: CallContext
    ) -> AsyncGenerator[responses_pb2.StreamResponseResponse | TextChunk, None]:
        """StreamResponse. A stream that fails after its beginning says so before it raises FailedRpcError."""
        response, chat = await call.parse(self._begin, request, call, streaming=True)
        del request  # which has the media's bytes
        usage = Usage()
        renderer = ResponseRenderer(response, usage)
        try:
            async with aclosing(self.chat.generator.generate(chat.generation, call, usage)) as deltas:
                async for delta in deltas:
                    for event in renderer.render(delta):
                        yield event
        except Exception as error:
            if not renderer.has_begun:
                raise
            failure = to_status(error, call.request_id)
            is_limit = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            for event in renderer.fail("rate_limit_exceeded" if is_limit else "server_error", failure.message):
                yield event
            raise FailedRpcError(failure) from error

    def _begin(
        self, request: responses_pb2.CreateResponseRequest, call: CallContext, *, streaming: bool
    ) -> tuple[responses_pb2.Response, ChatRequest]:
        check_bounds(request)
        adapted: dict[str, str] = {}
        adapted_request = to_chat(request, adapted, call.ignored_fields)
        call.adapted |= adapted  # errors until now name what was sent
        head, chat = self.chat.begin(adapted_request, call, streaming=streaming)
        return begin_response(request, head, chat.generation.sampling, call.request_id), chat
