"""The methods behind OpenAI's Responses API: conversations are parsed and answered as ChatService's are."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import grpc

from glimpse.openai.v1 import responses_pb2
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.dialects.responses.request import to_chat, to_count
from glimpse.server.dialects.responses.response import ResponseRenderer, begin_response, render_response
from glimpse.server.dialects.responses.stored import Recording, StoredResponses, item_id, response_name
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.chat import check_bounds
from glimpse.server.render.chat import rendering_size
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.errors import to_status
from glimpse.server.rpc.failure import FailedRpcError
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.server.services.chat import ChatHandlers
from glimpse.streams import Stream
from glimpse.v1 import chat_pb2

_Event = responses_pb2.StreamResponseResponse | TextChunk
_MAX_LISTED = 20
"""Items of a list whose request sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesHandlers:
    """Methods of ResponsesService."""

    chat: ChatHandlers
    stored: StoredResponses

    async def create(self, request: responses_pb2.CreateResponseRequest, call: CallContext) -> responses_pb2.Response:
        history = await self._prepare(request, call)
        with self.stored.recording(request, call) as recording:
            response, chat = await call.parse(self._begin, request, history, call, streaming=False)
            if recording is not None:
                await recording.begin(request)
            del request, history  # which have the media's bytes
            deltas, usage = await self.chat.generator.complete(chat.generation, call)
            await run_sized(call.client, rendering_size(deltas), render_response, response, deltas, usage)
            if recording is not None:
                await recording.finish(response)
        return response

    def stream(self, request: responses_pb2.CreateResponseRequest, call: CallContext) -> Stream[_Event]:
        """StreamResponse. A stream that fails after its beginning says so before it raises FailedRpcError."""
        return Stream(partial(self._stream, request, call))

    async def _stream(
        self, request: responses_pb2.CreateResponseRequest, call: CallContext, own: Stream[_Event]
    ) -> AsyncGenerator[_Event, None]:
        history = await self._prepare(request, call)
        with self.stored.recording(request, call) as recording:
            response, chat = await call.parse(self._begin, request, history, call, streaming=True)
            if recording is not None:
                await recording.begin(request)
            del request, history  # which have the media's bytes
            async with aclosing(self._events(response, chat, recording, call, own)) as events:
                async for event in events:
                    yield event

    async def _events(
        self,
        response: responses_pb2.Response,
        chat: ChatRequest,
        recording: Recording | None,
        call: CallContext,
        own: Stream[_Event],
    ) -> AsyncGenerator[_Event, None]:
        usage = Usage()
        renderer = ResponseRenderer(response, usage)
        try:
            async with aclosing(self.chat.generator.generate(chat.generation, call, usage)) as deltas:
                if own.receiver is not None:
                    deltas.receiver = own.receiver.of_each(renderer.render)
                async for delta in deltas:
                    events = [*renderer.render(delta)]
                    if delta.finish is not None and recording is not None:
                        await recording.finish(response)  # before the client knows that it is complete
                    for event in events:
                        yield event
        except Exception as error:
            if not renderer.num_events:
                raise
            failure = to_status(error, call.request_id)
            is_limit = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            for event in renderer.fail("rate_limit_exceeded" if is_limit else "server_error", failure.message):
                yield event
            raise FailedRpcError(failure, num_events=renderer.num_events) from error

    async def count_tokens(
        self, request: responses_pb2.CreateResponseRequest, call: CallContext
    ) -> responses_pb2.CountInputTokensResponse:
        history = await self._prepare(request, call)
        count = await call.parse(self._begin_count, request, history, call)
        del request, history  # which have the media's bytes
        counted = await self.chat.count_tokens(count, call)
        return responses_pb2.CountInputTokensResponse(input_tokens=counted.prompt_tokens)

    async def get(self, request: responses_pb2.GetResponseRequest, call: CallContext) -> responses_pb2.Response:
        check_bounds(request)
        if request.stream:
            raise InvalidRequest(
                "stream", "expected false: only responses in the background stream again", "unsupported"
            )
        return (await self.stored.get(request.response_id, call)).response

    async def delete(
        self, request: responses_pb2.DeleteResponseRequest, call: CallContext
    ) -> responses_pb2.DeleteResponseResponse:
        check_bounds(request)
        await self.stored.remove(request.response_id, call)
        return responses_pb2.DeleteResponseResponse(id=request.response_id, deleted=True)

    async def list_input_items(
        self, request: responses_pb2.ListInputItemsRequest, call: CallContext
    ) -> responses_pb2.ListInputItemsResponse:
        check_bounds(request)
        if request.order not in ("", "asc", "desc"):
            raise InvalidRequest("order", f"expected 'asc' or 'desc', got '{request.order[:64]}'")
        items = await self.stored.input_items(request.response_id, call)
        return await call.parse(_page, request, items)

    async def cancel(self, request: responses_pb2.CancelResponseRequest, call: CallContext) -> responses_pb2.Response:
        check_bounds(request)
        await self.stored.get(request.response_id, call)
        message = "expected a response in the background, got one that has ended"
        raise InvalidRequest("response_id", message, "unsupported")

    async def _prepare(
        self, request: responses_pb2.CreateResponseRequest, call: CallContext
    ) -> Sequence[responses_pb2.StoredResponse]:
        """Returns the responses before a request, and puts what it refers to into it."""
        await call.parse(check_bounds, request)
        await self.stored.resolve(request, call)
        return await self.stored.history(request, call)

    def _begin(
        self,
        request: responses_pb2.CreateResponseRequest,
        history: Iterable[responses_pb2.StoredResponse],
        call: CallContext,
        *,
        streaming: bool,
    ) -> tuple[responses_pb2.Response, ChatRequest]:
        adapted: dict[str, str] = {}
        adapted_request = to_chat(request, history, adapted, call.ignored_fields)
        call.adapted |= adapted  # errors until now name what was sent
        head, chat = self.chat.begin(adapted_request, call, streaming=streaming)
        return begin_response(request, head, chat.generation.sampling, response_name(call)), chat

    def _begin_count(
        self,
        request: responses_pb2.CreateResponseRequest,
        history: Iterable[responses_pb2.StoredResponse],
        call: CallContext,
    ) -> chat_pb2.CountTokensRequest:
        adapted: dict[str, str] = {}
        count = to_count(request, history, adapted)
        call.adapted |= adapted
        return count


def _page(
    request: responses_pb2.ListInputItemsRequest, items: list[responses_pb2.ResponseItem]
) -> responses_pb2.ListInputItemsResponse:
    """Returns the part of a list that is asked for. Raises InvalidRequest."""
    if request.order != "asc":
        items.reverse()
    if request.after:
        names = [item_id(item) for item in items]
        if request.after not in names:
            raise InvalidRequest("after", f"expected the id of an item of the list, got '{request.after[:64]}'")
        items = items[names.index(request.after) + 1 :]
    limit = request.limit if request.HasField("limit") else _MAX_LISTED
    page = items[:limit]
    ends = {"first_id": item_id(page[0]), "last_id": item_id(page[-1])} if page else {}
    return responses_pb2.ListInputItemsResponse(data=page, has_more=len(items) > limit, **ends)
