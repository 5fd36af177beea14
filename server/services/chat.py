"""ChatService: parses requests, generates completions and renders responses."""

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.chat import parse_chat, parse_count
from glimpse.server.render.chat import (
    ChunkRenderer,
    CompletionHead,
    render_prompt_details,
    render_response,
    render_videos,
    rendering_size,
    with_usage,
)
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.body_budget import body_size
from glimpse.server.rpc.context import cache_namespace, current_rpc
from glimpse.server.rpc.offload import run_sized
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.server.rpc.typed_handlers import Context
from glimpse.server.services.models import ServedModel
from glimpse.server.services.usage_accounting import with_usage_accounting
from glimpse.v1 import chat_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatHandlers:
    """Methods of ChatService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    generator: CompletionGenerator
    loader: PromptLoader

    async def create(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> chat_pb2.CreateChatCompletionResponse:
        """CreateChatCompletion. Joins the deltas of a stream."""
        head, chat = await run_sized(body_size(), self._begin, request, streaming=False)
        del request  # which has the media's bytes
        async with aclosing(with_usage_accounting(self.generator, chat.generation)) as stream:
            deltas = [delta async for delta in stream]
        return await run_sized(rendering_size(deltas), render_response, head, chat, deltas)

    async def stream(
        self, request: chat_pb2.CreateChatCompletionRequest, _context: Context
    ) -> AsyncGenerator[chat_pb2.StreamChatCompletionResponse | TextChunk, None]:
        """StreamChatCompletion."""
        head, chat = await run_sized(body_size(), self._begin, request, streaming=True)
        del request  # which has the media's bytes
        renderer = ChunkRenderer(head)
        usage: Usage | None = None
        async with aclosing(with_usage_accounting(self.generator, chat.generation)) as deltas:
            async for delta in deltas:
                usage = delta.usage
                chunks: Iterable[chat_pb2.StreamChatCompletionResponse | TextChunk] = renderer.render(delta)
                if delta.prompt_tokens:
                    chunks = await run_sized(rendering_size([delta]), list, chunks)
                for chunk in chunks:
                    yield with_usage(chunk, usage) if chat.continuous_usage else chunk
        if chat.include_usage and usage is not None:
            yield renderer.render_usage(usage)

    async def count_tokens(
        self, request: chat_pb2.CountTokensRequest, _context: Context
    ) -> chat_pb2.CountTokensResponse:
        """CountTokens."""
        self.model.check_name(request.model)
        max_model_len = self.generator.check_ready().max_model_len
        model = self.model
        conversation = await run_sized(
            body_size(), parse_count, request, max_media=model.max_media, reasoning=model.reasoning
        )
        cache_salt = cache_namespace(request.cache_salt)
        del request  # which has the media's bytes
        load = self.loader.load(conversation, cache_salt=cache_salt, deadline=current_rpc().deadline)
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
        name = self.model.check_name(request.model)
        chat = parse_chat(
            request,
            streaming=streaming,
            vocab_size=self.model.vocab_size,
            max_media=self.model.max_media,
            reasoning=self.model.reasoning,
            defaults=self.model.sampling,
        )
        # Fail before loading media.
        ready = self.generator.check_ready()
        head = CompletionHead(
            id=f"chatcmpl-{current_rpc().request_id}",
            created=int(time.time()),
            model=name,
            system_fingerprint=self.model.fingerprint(ready),
            service_tier=chat_pb2.SERVICE_TIER_DEFAULT if chat.echoes_service_tier else None,
        )
        return head, chat
