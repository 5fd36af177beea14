"""From what is asked to the pieces of its answers: prompts, engine, text. One path for every door.

Knows no protobuf and no gRPC. Whatever ends the consumer's interest (its task is cancelled, the generator closed) ends
the work in the engine too.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.ipc.client import EngineClient, EngineState
from glimpse.engine.protocol import FinishReason, Generate, Ready, Sibling, TokenEvent
from glimpse.engine.text.assembler import Assembler, TokenText
from glimpse.engine.text.tokenizer import Tokenizer
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.kind import MediaKind
from glimpse.server.generation.completion import Answer, AnswerDelta, CallDelta, Ending
from glimpse.server.generation.constraints import FREE, Enforcement, Held
from glimpse.server.generation.merge_streams import merged
from glimpse.server.generation.prompts import LoadedPrompt, PromptLoader, VideoFrames
from glimpse.server.request import AnswerRequest
from glimpse.server.rpc.errors import DeadlineExceededError
from glimpse.server.rpc.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """What a request cost."""

    prompt: int
    """Those of media included; each prompt counts once, whatever the number of its answers."""
    media: Mapping[MediaKind, int]
    """Of `prompt`, those of media, by kind."""
    cached: int
    """Of `prompt`, those that the prefix cache spared the first answer to each."""
    completion: int
    media_usage: MediaUsage | None = None
    """What it took to get the media; None where there are none."""
    encoded: int = 0
    """Media that the engine encoded for it."""
    encodings_spared: int = 0
    """Media of which the engine had kept what the encoder makes of them, or what was computed with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is new in an answer."""

    index: int
    """The answer's place: all answers to the first prompt, then all to the second, …."""
    text: str
    calls: tuple[CallDelta, ...]
    """At most one of each call."""
    tokens: tuple[TokenText, ...]
    """With their log-probabilities; empty where these were not asked for."""
    ending: Ending | None
    """In the answer's last piece."""
    counts: TokenCounts
    """Of the whole request, so far."""
    videos: tuple[VideoFrames, ...]
    """What is seen of the clips of the answer's prompt; the same in every piece."""


class Completer:
    """Answers with one engine."""

    def __init__(
        self,
        *,
        engine: EngineClient,
        loader: PromptLoader,
        tokenizer: Tokenizer,
        enforcement: Enforcement,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._loader = loader
        self._tokenizer = tokenizer
        self._enforcement = enforcement
        self._metrics = metrics
        self._serial = itertools.count()

    def check_ready(self) -> Ready:
        """What the engine says of itself. Raises EngineError (UNAVAILABLE) unless it takes requests."""
        if self._engine.state is not EngineState.READY or self._engine.ready is None:
            raise EngineError(EngineErrorCode.UNAVAILABLE, _WHY_UNAVAILABLE[self._engine.state])
        return self._engine.ready

    async def answer(
        self, request: AnswerRequest, request_id: str, *, deadline: float | None
    ) -> AsyncGenerator[Piece, None]:
        """Yields the answers' pieces as they come, those of several answers in any order.

        The first comes with the engine's first event: what fails before, fails whole.

        Raises, beside what `PromptLoader.load` raises:
            InvalidRequest: what the answers are to be held to cannot be enforced.
            EngineError: the engine refused the request, or could not finish it.
        """
        clocks = [self._metrics.answer_clock() for _ in range(len(request.prompts) * request.num_answers)]
        is_free = request.tools is None and request.constraint is None
        held = FREE if is_free else await asyncio.to_thread(self._enforcement.held, request)
        async with AsyncExitStack() as stack:
            loads = [
                self._loader.load(each, cache_salt=request.cache_salt, deadline=deadline) for each in request.prompts
            ]
            prompts = [await stack.enter_async_context(load) for load in loads]
            tally = _Tally(prompts)
            streams = [self._answers(request, prompt, held, request_id, deadline) for prompt in prompts]
            deltas = await stack.enter_async_context(aclosing(merged(streams)))
            async for prompt_index, (answer_index, delta) in deltas:
                index = prompt_index * request.num_answers + answer_index
                clocks[index].tick()
                yield Piece(
                    index=index,
                    text=delta.text,
                    calls=delta.calls,
                    tokens=delta.tokens,
                    ending=delta.ending,
                    counts=tally.count(prompt_index, answer_index, delta),
                    videos=prompts[prompt_index].videos,
                )
            self._metrics.answered(tally.num_encodings_spared)

    async def _answers(
        self, request: AnswerRequest, prompt: LoadedPrompt, held: Held, request_id: str, deadline: float | None
    ) -> AsyncGenerator[tuple[int, AnswerDelta], None]:
        """What is new in the answers to one prompt, each with its answer's place."""
        generate = self._generate(request, prompt, held, request_id)
        ids = [generate.request_id, *(sibling.request_id for sibling in generate.siblings)]
        running = {each: (index, self._new_answer(request, held)) for index, each in enumerate(ids)}
        async with aclosing(self._engine.generate(generate)) as events:
            while running and (event := await _next_event(events, deadline)) is not None:
                if event.request_id not in running:
                    continue
                _check(event)
                index, answer = running[event.request_id]
                delta = answer.feed(event)
                if delta.ending is not None:
                    del running[event.request_id]
                    if running:
                        # The engine may not know yet: stop texts are not its work.
                        self._engine.cancel(event.request_id)
                yield index, delta

    def _new_answer(self, request: AnswerRequest, held: Held) -> Answer:
        hidden = self._tokenizer.special_ids - held.shown_ids if request.skip_special_tokens else frozenset[int]()
        assembler = Assembler(
            self._tokenizer, stop=request.sampling.stop, logprobs=request.sampling.logprobs, hidden_ids=hidden
        )
        return Answer(assembler, None if request.tools is None else self._enforcement.call_reader(request.tools))

    def _generate(self, request: AnswerRequest, prompt: LoadedPrompt, held: Held, request_id: str) -> Generate:
        # Clients choose their request ids, and may use one twice at the same time.
        unique = f"{request_id}/{next(self._serial)}"
        seed = request.sampling.seed
        return Generate(
            request_id=unique,
            token_ids=prompt.token_ids,
            media=prompt.media,
            sampling=replace(request.sampling, grammar=held.grammar),
            priority=request.priority,
            cache_salt=request.cache_salt,
            siblings=[
                Sibling(request_id=f"{unique}.{index}", seed=None if seed is None else seed + index)
                for index in range(1, request.num_answers)
            ],
        )


class _Tally:
    """Counts the tokens of a request's answers."""

    def __init__(self, prompts: Sequence[LoadedPrompt]) -> None:
        self._num_prompt = sum(len(prompt.token_ids) for prompt in prompts)
        self._media = sum((Counter(prompt.media_tokens) for prompt in prompts), Counter[MediaKind]())
        self._media_usage = next((prompt.media_usage for prompt in prompts if prompt.media_usage is not None), None)
        """Of the one prompt that there is where there are media: texts to be continued have none."""
        self._num_encodable = sum(prompt.num_encodable for prompt in prompts)
        self._num_encoded = 0
        self._num_completion = 0
        self._cached: dict[int, int] = {}
        """What the answers to each prompt were spared that began so far: the one that was spared least."""
        self._begun: set[tuple[int, int]] = set()
        """The answers that began, by their prompt's place and their own."""

    @property
    def num_encodings_spared(self) -> int:
        """Several answers to a prompt encode its media once."""
        return max(0, self._num_encodable - self._num_encoded)

    def count(self, prompt_index: int, answer_index: int, delta: AnswerDelta) -> TokenCounts:
        """The counts with this delta of an answer."""
        self._num_completion += delta.num_tokens
        if (prompt_index, answer_index) not in self._begun:
            self._begun.add((prompt_index, answer_index))
            # Later answers to a prompt find in the cache what the first one computed: that spared nobody anything.
            spared = self._cached.get(prompt_index, delta.num_cached)
            self._cached[prompt_index] = min(spared, delta.num_cached)
            self._num_encoded += delta.num_encoded
        return TokenCounts(
            prompt=self._num_prompt,
            media=self._media,
            cached=sum(self._cached.values()),
            completion=self._num_completion,
            media_usage=self._media_usage,
            encoded=self._num_encoded,
            encodings_spared=self.num_encodings_spared,
        )


async def _next_event(events: AsyncGenerator[TokenEvent, None], deadline: float | None) -> TokenEvent | None:
    """The next event, None after the last. Raises DeadlineExceededError when the deadline comes first."""
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(events, None)
    except TimeoutError as error:
        raise DeadlineExceededError from error


def _check(event: TokenEvent) -> None:
    """Raises EngineError for an event that ends a request in a bad way."""
    match event.finish:
        case FinishReason.ERROR:
            raise EngineError(event.error or EngineErrorCode.INTERNAL, event.message)
        case FinishReason.CANCELLED:
            # Not by us: what we cancel is not waited for.
            raise EngineError(EngineErrorCode.UNAVAILABLE, "The server is stopping.")
        case _:
            return


_WHY_UNAVAILABLE = {
    EngineState.LOADING: "The model is still loading.",
    EngineState.READY: "The engine is starting.",
    EngineState.RESTARTING: "The engine is being restarted.",
    EngineState.FAILED: "The engine has failed and is not running.",
    EngineState.STOPPED: "The server is stopping.",
}
