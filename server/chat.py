"""ChatService: conversations in, answers out. Parse, complete, render; each is a file of its own."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import grpc.aio

from engine.plan import MediaKind
from glimpse.v1 import chat_pb2
from server.calls import current_call
from server.completion import Completer, Piece, TokenCounts
from server.models_service import ServedModel
from server.parse import parse_chat, parse_count
from server.render import AnswerHead, render_chunk, render_clips, render_counts, render_response, render_usage_chunk
from server.request import ChatRequest

Context = grpc.aio.ServicerContext[object, object]


class ChatHandlers:
    """ChatService's methods; they raise what server.errors knows."""

    def __init__(
        self, *, model: ServedModel, completer: Completer, vocab_size: int, max_media: Mapping[MediaKind, int]
    ) -> None:
        self._model = model
        self._completer = completer
        self._vocab_size = vocab_size
        self._max_media = max_media

    async def create(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> chat_pb2.CreateChatCompletionResponse:
        """CreateChatCompletion: the pieces of a stream, put together."""
        head, chat = self._begin(request, streaming=False)
        async with aclosing(self._answer(chat)) as pieces:
            return render_response(head, [piece async for piece in pieces], logprobs=chat.sampling.logprobs is not None)

    async def stream(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> AsyncGenerator[chat_pb2.StreamChatCompletionResponse, None]:
        """StreamChatCompletion."""
        head, chat = self._begin(request, streaming=True)
        first = True
        counts: TokenCounts | None = None
        async with aclosing(self._answer(chat)) as pieces:
            async for piece in pieces:
                counts = piece.counts
                if first or _says_something(piece):
                    yield render_chunk(head, piece, first=first)
                    first = False
        if chat.include_usage and counts is not None:
            yield render_usage_chunk(head, counts)

    async def count_tokens(
        self, request: chat_pb2.CountTokensRequest, _context: Context
    ) -> chat_pb2.CountTokensResponse:
        """CountTokens."""
        self._model.check_name(request.model)
        max_model_len = self._completer.check_ready().max_model_len
        conversation = parse_count(request, max_media=self._max_media)
        prompt = await self._completer.load(conversation, deadline=current_call().deadline)
        return chat_pb2.CountTokensResponse(
            prompt_tokens=len(prompt.token_ids),
            prompt_tokens_details=render_counts(prompt.media_tokens, num_cached=0),
            max_model_len=max_model_len,
            clips=render_clips(prompt.clips),
        )

    def _begin(
        self, request: chat_pb2.CreateChatCompletionRequest, *, streaming: bool
    ) -> tuple[AnswerHead, ChatRequest]:
        name = self._model.check_name(request.model)
        chat = parse_chat(request, streaming=streaming, vocab_size=self._vocab_size, max_media=self._max_media)
        # Better now than after loading the media.
        self._completer.check_ready()
        return AnswerHead(id=f"chatcmpl-{current_call().request_id}", created=int(time.time()), model=name), chat

    async def _answer(self, chat: ChatRequest) -> AsyncGenerator[Piece, None]:
        """The answer's pieces; the call's record follows along."""
        call = current_call()
        async with aclosing(self._completer.answer(chat, call.request_id, deadline=call.deadline)) as pieces:
            async for piece in pieces:
                call.prompt_tokens, call.completion_tokens = piece.counts.prompt, piece.counts.completion
                yield piece


def _says_something(piece: Piece) -> bool:
    """Deltas hold text back that may become part of a character or of a stop text; such a piece has nothing to say."""
    return bool(piece.text or piece.tokens or piece.finish)
