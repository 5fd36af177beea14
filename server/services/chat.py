"""ChatService: parses requests, generates completions and renders responses."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import grpc.aio

from glimpse.media.kind import MediaKind
from glimpse.server.generation.generator import CompletionGenerator, Usage
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.parse.chat import parse_chat, parse_count
from glimpse.server.render.chat import (
    ChunkRenderer,
    CompletionHead,
    render_prompt_details,
    render_response,
    render_usage_chunk,
    render_videos,
)
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.context import current_rpc
from glimpse.server.services.models import ServedModel
from glimpse.server.services.usage_accounting import with_usage_accounting
from glimpse.v1 import chat_pb2

Context = grpc.aio.ServicerContext[object, object]


class ChatHandlers:
    """Methods of ChatService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(
        self,
        *,
        model: ServedModel,
        generator: CompletionGenerator,
        loader: PromptLoader,
        vocab_size: int,
        max_media: Mapping[MediaKind, int],
        supports_reasoning_effort: bool,
    ) -> None:
        """`supports_reasoning_effort`: the model's chat template uses `reasoning_effort`."""
        self._model = model
        self._generator = generator
        self._loader = loader
        self._vocab_size = vocab_size
        self._max_media = max_media
        self._supports_reasoning_effort = supports_reasoning_effort

    async def create(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> chat_pb2.CreateChatCompletionResponse:
        """CreateChatCompletion. Joins the deltas of a stream."""
        head, chat = self._begin(request, streaming=False)
        async with aclosing(with_usage_accounting(self._generator, chat.generation)) as deltas:
            return render_response(head, chat, [delta async for delta in deltas])

    async def stream(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> AsyncGenerator[chat_pb2.StreamChatCompletionResponse, None]:
        """StreamChatCompletion."""
        head, chat = self._begin(request, streaming=True)
        renderer = ChunkRenderer(head)
        usage: Usage | None = None
        async with aclosing(with_usage_accounting(self._generator, chat.generation)) as deltas:
            async for delta in deltas:
                usage = delta.usage
                for chunk in renderer.render(delta):
                    yield chunk
        if chat.include_usage and usage is not None:
            yield render_usage_chunk(head, usage)

    async def count_tokens(
        self, request: chat_pb2.CountTokensRequest, _context: Context
    ) -> chat_pb2.CountTokensResponse:
        """CountTokens."""
        self._model.check_name(request.model)
        max_model_len = self._generator.check_ready().max_model_len
        conversation = parse_count(request, max_media=self._max_media)
        load = self._loader.load(conversation, cache_salt=request.cache_salt, deadline=current_rpc().deadline)
        async with load as prompt:
            return chat_pb2.CountTokensResponse(
                prompt_tokens=len(prompt.token_ids),
                prompt_tokens_details=render_prompt_details(prompt.media_tokens, cached_tokens=0),
                max_model_len=max_model_len,
                videos=render_videos(prompt.videos),
            )

    def _begin(
        self, request: chat_pb2.CreateChatCompletionRequest, *, streaming: bool
    ) -> tuple[CompletionHead, ChatRequest]:
        name = self._model.check_name(request.model)
        chat = parse_chat(
            request,
            streaming=streaming,
            vocab_size=self._vocab_size,
            max_media=self._max_media,
            supports_reasoning_effort=self._supports_reasoning_effort,
        )
        # Fail before loading media.
        self._generator.check_ready()
        head = CompletionHead(
            id=f"chatcmpl-{current_rpc().request_id}",
            created=int(time.time()),
            model=name,
            service_tier=chat_pb2.SERVICE_TIER_DEFAULT if chat.echoes_service_tier else None,
        )
        return head, chat
