"""ChatService: parses requests, generates completions and renders responses."""

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from glimpse.engine.checkpoint.text.conversation import num_characters
from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.medium_usage import media_tokens
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.chat import parse_chat, parse_count
from glimpse.server.render.chat import (
    ChunkRenderer,
    CompletionHead,
    render_prompt_details,
    render_quote,
    render_response,
    render_videos,
    rendering_size,
    with_usage,
)
from glimpse.server.request import ChatRequest
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.server.served_model import ServedModel
from glimpse.server.services.file_parts import set_kinds
from glimpse.streams import Stream
from glimpse.v1 import chat_pb2

_Chunk = chat_pb2.StreamChatCompletionResponse | TextChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatHandlers:
    """Methods of ChatService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    generator: CompletionGenerator
    loader: PromptLoader

    async def create(
        self, request: chat_pb2.CreateChatCompletionRequest, call: CallContext
    ) -> chat_pb2.CreateChatCompletionResponse:
        """CreateChatCompletion. Joins the deltas of a stream."""
        await self._set_kinds(request, call)
        head, chat = await call.parse(self.begin, request, call, streaming=False)
        del request  # which has the media's bytes
        deltas, usage = await self.generator.complete(chat.generation, call)
        return await run_sized(call.client, rendering_size(deltas), render_response, head, chat, deltas, usage)

    def stream(self, request: chat_pb2.CreateChatCompletionRequest, call: CallContext) -> Stream[_Chunk]:
        """StreamChatCompletion."""
        return Stream(partial(self._stream, request, call))

    async def _stream(
        self, request: chat_pb2.CreateChatCompletionRequest, call: CallContext, own: Stream[_Chunk]
    ) -> AsyncGenerator[_Chunk, None]:
        await self._set_kinds(request, call)
        head, chat = await call.parse(self.begin, request, call, streaming=True)
        del request  # which has the media's bytes
        usage = Usage()
        renderer = ChunkRenderer(head, usage, with_images=bool(chat.generation.grounding))

        def rendered(delta: Delta) -> _Chunk | None:
            chunk = renderer.render_output(delta)
            return with_usage(chunk, usage) if chat.continuous_usage and chunk is not None else chunk

        async with aclosing(self.generator.generate(chat.generation, call, usage)) as deltas:
            if own.receiver is not None:
                deltas.receiver = own.receiver.of(rendered)
            async for delta in deltas:
                chunks: Iterable[_Chunk] = renderer.render(delta)
                if delta.prompt_tokens or delta.groundings:
                    chunks = await run_sized(call.client, rendering_size([delta]), list, chunks)
                for chunk in chunks:
                    yield with_usage(chunk, usage) if chat.continuous_usage else chunk
        if chat.include_usage:
            yield renderer.render_usage()

    async def count_tokens(
        self, request: chat_pb2.CountTokensRequest, call: CallContext
    ) -> chat_pb2.CountTokensResponse:
        self.model.check_name(request.model)
        max_model_len = self.generator.check_ready().max_model_len
        await self._set_kinds(request, call)
        conversation = await call.parse(parse_count, request, call, self.model)
        cache_salt, with_quote = call.tenant.namespace(request.cache_salt), request.quote
        adapter = self.model.adapter_of(request.model)
        del request  # which has the media's bytes
        async with self.loader.load(conversation, call, cache_salt=cache_salt) as prompt:
            response = chat_pb2.CountTokensResponse(
                prompt_tokens=len(prompt.token_ids),
                prompt_tokens_details=render_prompt_details(media_tokens(prompt.seen), cached_tokens=0),
                max_model_len=max_model_len,
                videos=render_videos(prompt.seen),
            )
            if not with_quote:
                return response
            stats = await self.generator.probe(prompt, call, cache_salt=cache_salt, adapter=adapter)
            size = num_characters(conversation.messages)
            quote = await run_sized(call.client, size, self.generator.quote, prompt, conversation.messages, stats, call)
        response.quote.CopyFrom(render_quote(quote))
        response.prompt_tokens_details.cached_tokens = quote.num_cached_tokens
        return response

    async def _set_kinds(
        self, request: chat_pb2.CreateChatCompletionRequest | chat_pb2.CountTokensRequest, call: CallContext
    ) -> None:
        await set_kinds(request.messages, call, self.loader, cache_salt=request.cache_salt)

    def begin(
        self, request: chat_pb2.CreateChatCompletionRequest, call: CallContext, *, streaming: bool
    ) -> tuple[CompletionHead, ChatRequest]:
        """Parses a request before its media are loaded. Raises InvalidRequest, ModelNotFoundError or EngineError."""
        name = self.model.check_name(request.model)
        chat = parse_chat(request, call, self.model, streaming=streaming)
        # Fail before loading media.
        ready = self.generator.check_ready()
        head = CompletionHead(
            id=f"chatcmpl-{call.request_id}",
            created=int(time.time()),
            model=name,
            system_fingerprint=self.model.fingerprint(ready, name),
            service_tier=chat_pb2.SERVICE_TIER_DEFAULT if chat.echoes_service_tier else None,
        )
        return head, chat
