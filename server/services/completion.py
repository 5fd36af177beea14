"""CompletionService: parses requests, generates completions of text prompts and renders responses."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.completion import parse_completion
from glimpse.server.render.chat import CompletionHead, rendering_size, with_usage
from glimpse.server.render.completion import CompletionRenderer
from glimpse.server.request import CompletionRequest, Conversation, PromptSource, TextPrompt, TokenPrompt
from glimpse.server.rpc.text_chunks import TextChunk
from glimpse.server.served_model import ServedModel
from glimpse.streams import Stream
from glimpse.v1 import completion_pb2

_Chunk = completion_pb2.StreamCompletionResponse | TextChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionHandlers:
    """Methods of CompletionService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    generator: CompletionGenerator
    tokenizer: Tokenizer

    async def create(
        self, request: completion_pb2.CreateCompletionRequest, call: CallContext
    ) -> completion_pb2.CreateCompletionResponse:
        """CreateCompletion. Joins the deltas of a stream."""
        renderer, completion = await call.parse(self._begin, request, call, streaming=False)
        del request
        deltas, usage = await self.generator.complete(completion.generation, call)
        return await run_sized(call.client, rendering_size(deltas), renderer.response, deltas, usage)

    def stream(self, request: completion_pb2.CreateCompletionRequest, call: CallContext) -> Stream[_Chunk]:
        """StreamCompletion."""
        return Stream(partial(self._stream, request, call))

    async def _stream(
        self, request: completion_pb2.CreateCompletionRequest, call: CallContext, own: Stream[_Chunk]
    ) -> AsyncGenerator[_Chunk, None]:
        renderer, completion = await call.parse(self._begin, request, call, streaming=True)
        del request
        usage = Usage()

        def rendered(delta: Delta) -> _Chunk | None:
            chunk = renderer.chunk(delta)
            return with_usage(chunk, usage) if completion.continuous_usage and chunk is not None else chunk

        async with aclosing(self.generator.generate(completion.generation, call, usage)) as deltas:
            if own.receiver is not None:
                deltas.receiver = own.receiver.of(rendered)
            async for delta in deltas:
                if delta.prompt_tokens:
                    chunk = await run_sized(call.client, rendering_size([delta]), rendered, delta)
                else:
                    chunk = rendered(delta)
                if chunk is not None:
                    yield chunk
        if completion.include_usage:
            yield renderer.usage_chunk(usage)

    def _begin(
        self, request: completion_pb2.CreateCompletionRequest, call: CallContext, *, streaming: bool
    ) -> tuple[CompletionRenderer, CompletionRequest]:
        name = self.model.check_name(request.model)
        completion = parse_completion(request, call, self.model, streaming=streaming)
        ready = self.generator.check_ready()
        head = CompletionHead(
            id=f"cmpl-{call.request_id}",
            created=int(time.time()),
            model=name,
            system_fingerprint=self.model.fingerprint(ready, name),
        )
        return CompletionRenderer(head, completion, self._echoes(completion)), completion

    def _echoes(self, completion: CompletionRequest) -> list[str]:
        """Returns the text that each completion begins with."""
        return [
            self._text_of(prompt) if completion.echo else ""
            for prompt in completion.generation.prompts
            for _ in range(completion.generation.num_completions)
        ]

    def _text_of(self, prompt: PromptSource) -> str:
        match prompt:
            case TextPrompt(text=text):
                return text
            case TokenPrompt(token_ids=token_ids):
                return self.tokenizer.decode(token_ids, skip_special=False)
            case Conversation():
                raise TypeError("a completion request has no conversations")
            case _:
                assert_never(prompt)
