"""ChatService: conversations in, answers out. Parse, complete, render; each is a file of its own."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import grpc.aio

from glimpse.media.kind import MediaKind
from glimpse.server.generation.generator import Completer, TokenCounts
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.parse.chat import parse_chat, parse_count
from glimpse.server.render.chat import (
    AnswerHead,
    ChunkRenderer,
    render_counts,
    render_response,
    render_usage_chunk,
    render_videos,
)
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.context import current_call
from glimpse.server.services.models import ServedModel
from glimpse.server.services.usage_accounting import watched
from glimpse.v1 import chat_pb2

Context = grpc.aio.ServicerContext[object, object]


class ChatHandlers:
    """ChatService's methods; they raise what glimpse.server.rpc.errors knows."""

    def __init__(
        self,
        *,
        model: ServedModel,
        completer: Completer,
        loader: PromptLoader,
        vocab_size: int,
        max_media: Mapping[MediaKind, int],
        asks_effort: bool,
    ) -> None:
        """`asks_effort`: the model's chat template asks for a reasoning effort."""
        self._model = model
        self._completer = completer
        self._loader = loader
        self._vocab_size = vocab_size
        self._max_media = max_media
        self._asks_effort = asks_effort

    async def create(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> chat_pb2.CreateChatCompletionResponse:
        """CreateChatCompletion: the pieces of a stream, put together."""
        head, chat = self._begin(request, streaming=False)
        async with aclosing(watched(self._completer, chat.answers)) as pieces:
            return render_response(head, chat, [piece async for piece in pieces])

    async def stream(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> AsyncGenerator[chat_pb2.StreamChatCompletionResponse, None]:
        """StreamChatCompletion."""
        head, chat = self._begin(request, streaming=True)
        renderer = ChunkRenderer(head)
        counts: TokenCounts | None = None
        async with aclosing(watched(self._completer, chat.answers)) as pieces:
            async for piece in pieces:
                counts = piece.counts
                for chunk in renderer.render(piece):
                    yield chunk
        if chat.include_usage and counts is not None:
            yield render_usage_chunk(head, counts)

    async def count_tokens(
        self, request: chat_pb2.CountTokensRequest, _context: Context
    ) -> chat_pb2.CountTokensResponse:
        """CountTokens."""
        self._model.check_name(request.model)
        max_model_len = self._completer.check_ready().max_model_len
        conversation = parse_count(request, max_media=self._max_media)
        load = self._loader.load(conversation, cache_salt=request.cache_salt, deadline=current_call().deadline)
        async with load as prompt:
            return chat_pb2.CountTokensResponse(
                prompt_tokens=len(prompt.token_ids),
                prompt_tokens_details=render_counts(prompt.media_tokens, num_cached=0),
                max_model_len=max_model_len,
                videos=render_videos(prompt.videos),
            )

    def _begin(
        self, request: chat_pb2.CreateChatCompletionRequest, *, streaming: bool
    ) -> tuple[AnswerHead, ChatRequest]:
        name = self._model.check_name(request.model)
        chat = parse_chat(
            request,
            streaming=streaming,
            vocab_size=self._vocab_size,
            max_media=self._max_media,
            asks_effort=self._asks_effort,
        )
        # Better now than after loading the media.
        self._completer.check_ready()
        head = AnswerHead(
            id=f"chatcmpl-{current_call().request_id}",
            created=int(time.time()),
            model=name,
            names_tier=chat.names_tier,
        )
        return head, chat
