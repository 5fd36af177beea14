"""Runs requests for embeddings: loads the inputs, submits them to the engine and collects the vectors.

Independent of protobuf and gRPC. When the caller's task is cancelled, the engine's work is cancelled too.
"""

import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import assert_never

from glimpse.engine.checkpoint.text.conversation import num_characters
from glimpse.engine.client.engine import Engine
from glimpse.engine.client.suspects import prompt_digest
from glimpse.engine.errors import EngineError, EngineErrorCode, TemplateError
from glimpse.engine.protocol.messages import Embed, Ready, TokenEvent
from glimpse.server.call.context import CallContext
from glimpse.server.call.deadline import within
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.abandoned_prompts import charge_always
from glimpse.server.generation.engine_failures import check_end, check_ready
from glimpse.server.generation.merge_streams import merge_streams
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.generation.usage import LoadedPrompt, Usage
from glimpse.server.request import (
    Conversation,
    EmbeddingPrompt,
    EmbeddingRequest,
    PromptSource,
    TextPrompt,
    TokenPrompt,
)
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.stages import MAX_SPANS, record_prompt_stages

MAX_INPUTS_AT_ONCE = 64
"""Inputs of a request that are in the engine at a time, so that a request for thousands does not fill its queue."""
_CHARACTERS_PER_TOKEN = 4
"""About as many as in English."""
_REASONS = {
    EngineErrorCode.PROMPT_TOO_LONG: "context_length_exceeded",
    EngineErrorCode.UNSUPPORTED: "unsupported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInputs:
    """The embeddings of a request's inputs."""

    vectors: Sequence[bytes]
    """Vector of each input, float32 and little-endian."""
    usage: Usage
    """Usage of the whole request, which has no completion tokens."""


class Embedder:
    """Computes embeddings with one engine."""

    def __init__(self, *, engine: Engine, loader: PromptLoader, metrics: Metrics) -> None:
        self._engine = engine
        self.loader = loader
        self._metrics = metrics

    def check_ready(self) -> Ready:
        """Returns what the engine reported when it became ready. Raises EngineError (UNAVAILABLE) if it is not."""
        return check_ready(self._engine)

    async def embed(self, request: EmbeddingRequest, call: CallContext) -> EmbeddedInputs:
        """Embeds all inputs. Those of a request share what the engine gives to one request.

        Each input is loaded in its turn: a request for thousands has few prompts in memory, and no conversation waits
        for memory while another one holds some.

        Raises:
            InvalidRequest: an input cannot be used, or is too long.
            EngineError: the engine refused an input or could not finish it.
            DeadlineExceededError: the call's deadline passed first.
        """
        batch = _Batch(request, call, flow=self._engine.unique_id(call.request_id))
        indices = iter(range(len(request.inputs)))
        streams = [self._embedded(indices, batch) for _ in range(min(MAX_INPUTS_AT_ONCE, len(request.inputs)))]
        async with aclosing(merge_streams(streams)) as ended:
            events = {index: event async for index, event in ended}
        call.prompt_tokens, call.completion_tokens = batch.usage.prompt_tokens, 0
        self._metrics.count_encoder_cache_hits(batch.usage.encoder_cache_hits)
        self._metrics.count_embeddings(len(events))
        return EmbeddedInputs(vectors=[events[index].embedding for index in sorted(events)], usage=batch.usage)

    async def _embedded(self, indices: Iterator[int], batch: "_Batch") -> AsyncGenerator[tuple[int, TokenEvent], None]:
        """Embeds one input after the other, as long as other streams leave any, and yields the last event of each."""
        for index in indices:
            async with self._loading(batch.request.inputs[index], batch) as prompt:
                batch.add(index, prompt)
                batch.call.ticket.end_preparing()
                event = await self._run(prompt, batch)
            batch.end(index, event)
            yield index, event

    @asynccontextmanager
    async def _loading(self, each: EmbeddingPrompt, batch: "_Batch") -> AsyncGenerator[LoadedPrompt]:
        """Loads an input. Errors in the block are about it."""
        salt = batch.request.cache_salt
        with _blaming(each.field):
            async with self.loader.load(each.source, batch.call, cache_salt=salt, keeps_body=True) as prompt:
                yield prompt

    async def _run(self, prompt: LoadedPrompt, batch: "_Batch") -> TokenEvent:
        embed = Embed(
            request_id=self._engine.unique_id(batch.flow),
            token_ids=prompt.token_ids,
            media=prompt.media,
            pooling=batch.request.pooling,
            priority=batch.call.priority(batch.request.priority),
            cache_salt=batch.call.tenant.engine_namespace(batch.request.cache_salt),
            adapter=batch.request.adapter,
            client=batch.call.client,
            flow=batch.flow,
            digest=prompt_digest(prompt.token_ids, prompt.media),
        )
        submitted = time.monotonic()
        async with within(batch.call.deadline):
            event = await self._engine.embed(embed, on_abandoned=charge_always(batch.call))
        check_end(self._engine, event)
        now = time.monotonic()
        self._metrics.prompt_computed(event.stats, prefill=max(0.0, now - submitted - event.stats.queue_seconds))
        if batch.takes_span():
            record_prompt_stages(submitted, now, event.stats)
        return event


class _Batch:
    """The inputs of a request, and how much of them is loaded and done."""

    def __init__(self, request: EmbeddingRequest, call: CallContext, *, flow: str) -> None:
        self.request = request
        self.call = call
        self.flow = flow
        """One value for all inputs of the request, and for no other request."""
        self.usage = Usage()
        self._num_loaded = self._num_loaded_tokens = 0
        self._num_tokens = [_estimated_tokens(each.source) for each in request.inputs]  # 0: embedded
        self._num_waiting_tokens = sum(self._num_tokens)
        self._num_spans = 0

    def add(self, index: int, prompt: LoadedPrompt) -> None:
        """Counts a prompt that is loaded. With the last one, nothing of the request's body is needed any more."""
        self._num_loaded += 1
        self.usage.add_prompt(index, prompt)
        if self._num_loaded == len(self.request.inputs):
            self.call.body.release()
        self._expect(index, len(prompt.token_ids))
        self._num_loaded_tokens += len(prompt.token_ids)
        if (most := self.request.max_tokens) is not None and self._num_loaded_tokens > most:
            message = f"expected at most {most} tokens of all inputs, as each has a vector; send several requests"
            raise InvalidRequest(self.request.inputs[index].field, message)

    def takes_span(self) -> bool:
        """Counts an input whose stages are recorded as spans, until there are many."""
        self._num_spans += 1
        return self._num_spans <= MAX_SPANS

    def end(self, index: int, event: TokenEvent) -> None:
        """Counts an input whose last event is there. It is charged even if the request is cancelled."""
        self.usage.add_stats(index, event.stats)
        self.call.prompt_tokens = (self.call.prompt_tokens or 0) + self._num_tokens[index]
        self._expect(index, 0)

    def _expect(self, index: int, num_tokens: int) -> None:
        self._num_waiting_tokens += num_tokens - self._num_tokens[index]
        self._num_tokens[index] = num_tokens
        self.call.ticket.expect(num_prompt_tokens=self._num_waiting_tokens, num_completions=0, max_tokens=0)


def _estimated_tokens(source: PromptSource) -> int:
    """Returns about how many tokens an input has before it is loaded, without its media."""
    match source:
        case TextPrompt(text=text):
            return len(text) // _CHARACTERS_PER_TOKEN
        case TokenPrompt(token_ids=token_ids):
            return len(token_ids)
        case Conversation(messages=messages):
            return num_characters(messages) // _CHARACTERS_PER_TOKEN
        case _:
            assert_never(source)


@contextmanager
def _blaming(field: str) -> Generator[None]:
    """Raises InvalidRequest for errors in the block that are about the input at this path."""
    try:
        yield
    except TemplateError as error:
        raise InvalidRequest(field, str(error), "template_refused") from error
    except EngineError as error:
        if error.code not in _REASONS:
            raise
        raise InvalidRequest(field, error.message, _REASONS[error.code]) from error
