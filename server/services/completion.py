"""CompletionService: texts in, their continuations out. Parse, complete, render; each is a file of its own."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import assert_never

import grpc.aio

from glimpse.engine.text.tokenizer import Tokenizer
from glimpse.server.generation.generator import Completer, TokenCounts
from glimpse.server.parse.completion import parse_completion
from glimpse.server.render.completion import CompletionHead, CompletionRenderer
from glimpse.server.request import CompletionRequest, Conversation, PromptSource, TextPrompt, TokenPrompt
from glimpse.server.rpc.context import current_call
from glimpse.server.services.models import ServedModel
from glimpse.server.services.usage_accounting import watched
from glimpse.v1 import completion_pb2

Context = grpc.aio.ServicerContext[object, object]


class CompletionHandlers:
    """CompletionService's methods; they raise what glimpse.server.rpc.errors knows."""

    def __init__(self, *, model: ServedModel, completer: Completer, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._model = model
        self._completer = completer
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    async def create(
        self, request: completion_pb2.CreateCompletionRequest, _context: Context
    ) -> completion_pb2.CreateCompletionResponse:
        """CreateCompletion: the pieces of a stream, put together."""
        renderer, completion = self._begin(request, streaming=False)
        async with aclosing(watched(self._completer, completion.answers)) as stream:
            pieces = [piece async for piece in stream]
        return renderer.response(pieces, pieces[-1].counts)

    async def stream(
        self, request: completion_pb2.CreateCompletionRequest, _context: Context
    ) -> AsyncGenerator[completion_pb2.StreamCompletionResponse, None]:
        """StreamCompletion."""
        renderer, completion = self._begin(request, streaming=True)
        counts: TokenCounts | None = None
        async with aclosing(watched(self._completer, completion.answers)) as pieces:
            async for piece in pieces:
                counts = piece.counts
                if (chunk := renderer.chunk(piece)) is not None:
                    yield chunk
        if completion.include_usage and counts is not None:
            yield renderer.usage_chunk(counts)

    def _begin(
        self, request: completion_pb2.CreateCompletionRequest, *, streaming: bool
    ) -> tuple[CompletionRenderer, CompletionRequest]:
        name = self._model.check_name(request.model)
        completion = parse_completion(request, streaming=streaming, vocab_size=self._vocab_size)
        self._completer.check_ready()
        head = CompletionHead(id=f"cmpl-{current_call().request_id}", created=int(time.time()), model=name)
        return CompletionRenderer(head, self._echoes(completion)), completion

    def _echoes(self, completion: CompletionRequest) -> list[str]:
        """For each continuation the text with which it begins."""
        return [
            self._text_of(prompt) if completion.echo else ""
            for prompt in completion.answers.prompts
            for _ in range(completion.answers.num_answers)
        ]

    def _text_of(self, prompt: PromptSource) -> str:
        match prompt:
            case TextPrompt(text=text):
                return text
            case TokenPrompt(token_ids=token_ids):
                return self._tokenizer.decode(list(token_ids))
            case Conversation():
                raise TypeError("a conversation is not continued as a text")
            case _:
                assert_never(prompt)
