"""Runs generation requests: loads the prompts, submits them to the engine and streams completion deltas.

Every RPC that generates text uses it. Independent of protobuf and gRPC. When the consumer stops (its task is cancelled
or the async generator is closed), the engine's work is cancelled too.
"""

import itertools
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from glimpse.engine.checkpoint.text.conversation import ChatMessage
from glimpse.engine.checkpoint.text.grounding import Grounding
from glimpse.engine.checkpoint.text.output_processor import Delta, OutputProcessor, TokenText, prompt_token_texts
from glimpse.engine.checkpoint.text.reasoning import ReasoningFormat
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.client.engine import Engine
from glimpse.engine.client.suspects import prompt_digest
from glimpse.engine.protocol.messages import (
    FinishReason,
    Generate,
    MediaInput,
    Ready,
    RequestStats,
    Sibling,
    TokenEvent,
)
from glimpse.engine.protocol.sampling_params import GrammarKind, ReasoningBudget, ReasoningTags, SamplingParams
from glimpse.media.processing.sizing.placement import ImagePlacement
from glimpse.server.call.context import CallContext
from glimpse.server.call.deadline import within
from glimpse.server.call.offload import builds, run_sized, turns
from glimpse.server.errors import DeadlineExceededError, InvalidRequest
from glimpse.server.generation.abandoned_prompts import charge_if_unused
from glimpse.server.generation.completion_parser import CompletionParser, ReasoningReader
from glimpse.server.generation.constraints import ConstraintBuilder, OutputConstraints
from glimpse.server.generation.engine_failures import check_end, check_ready
from glimpse.server.generation.grounding import GroundingReader, placements
from glimpse.server.generation.merge_streams import merge_streams
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.generation.quote import Quote, make_quote
from glimpse.server.generation.typed_answers import TypedAnswers
from glimpse.server.generation.usage import LoadedPrompt, Usage
from glimpse.server.request import GenerationRequest
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.stages import RequestTimer
from glimpse.streams import Stream

_SCORED_TOKEN_BYTES = 256
"""About what a token of a prompt takes in a response, with its log-probability and those of others."""

MAX_PROMPT_LOGPROBS = 1 << 18
"""Log-probabilities of prompts in a response, some 15 MB of JSON: 20 others for each of 12,000 tokens are fewer."""

_JSON = (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA)


class CompletionGenerator:
    """Generates completions with one engine."""

    def __init__(
        self,
        *,
        engine: Engine,
        loader: PromptLoader,
        tokenizer: Tokenizer,
        constraints: ConstraintBuilder,
        reasoning: ReasoningFormat | None,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._loader = loader
        self._tokenizer = tokenizer
        self._constraints = constraints
        self._reasoning = reasoning
        self._metrics = metrics

    def check_ready(self) -> Ready:
        """Returns what the engine reported when it became ready. Raises EngineError (UNAVAILABLE) if it is not."""
        return check_ready(self._engine)

    def generate(self, request: GenerationRequest, call: CallContext, usage: Usage) -> Stream[Delta]:
        """Returns deltas as they arrive; those of several completions are interleaved.

        Clients share the engine equally, and the prompts and completions of a request share what it gets.
        The first delta is yielded after the engine's first event, so a request that fails earlier yields nothing.
        Each delta is added to `usage` and to the call's token counts before it is yielded. A receiver gets only deltas
        without `tokens` and `finish`, none of them the first of a completion.

        Raises, in addition to the errors of `PromptLoader.load`:
            InvalidRequest: a constraint of the request cannot be enforced.
            EngineError: the engine refused the request or could not finish it.
        """
        return Stream(partial(self._generate, request, call, usage))

    async def complete(self, request: GenerationRequest, call: CallContext) -> tuple[list[Delta], Usage]:
        """Returns all deltas of `generate`, and the usage. Raises the same."""
        usage = Usage()
        async with aclosing(self.generate(request, call, usage)) as deltas:
            return [delta async for delta in deltas], usage

    async def _generate(
        self, request: GenerationRequest, call: CallContext, usage: Usage, own: Stream[Delta]
    ) -> AsyncGenerator[Delta, None]:
        timer = RequestTimer(self._metrics)
        constraints = await self._build_constraints(request, call)
        async with AsyncExitStack() as stack:
            stack.enter_context(_counting_aborts(timer))
            loads = [self._loader.load(each, call, cache_salt=request.cache_salt) for each in request.prompts]
            prompts = [await stack.enter_async_context(load) for load in loads]
            _check_scores(request, prompts)
            for index, prompt in enumerate(prompts):
                usage.add_prompt(index, prompt)
            flow = self._engine.unique_id(call.request_id)
            call.ticket.expect(
                num_prompt_tokens=usage.prompt_tokens,
                num_completions=len(prompts) * request.num_completions,
                max_tokens=request.sampling.max_tokens,
            )
            call.ticket.end_preparing()
            if len(prompts) == 1:
                call.ticket.submit(num_tokens=usage.prompt_tokens, num_media_tokens=sum(usage.media_tokens.values()))
            timer.submit((len(prompt.token_ids) for prompt in prompts), num_completions=request.num_completions)
            streams = [
                Stream(partial(self._prompt_deltas, request, index, prompt, constraints, call, flow))
                for index, prompt in enumerate(prompts)
            ]
            deltas = await stack.enter_async_context(aclosing(merge_streams(streams)))
            answers = None
            if constraints.reader is not None and not call.is_json:  # in JSON the text is the message
                answers = TypedAnswers(constraints.reader, call.client)
            counts = _Counts(request, call, usage, timer)
            # Of several prompts, none may overtake another that waits for the consumer.
            if own.receiver is not None and answers is None and len(streams) == 1:
                streams[0].receiver = own.receiver.of(counts.add)
            is_first = True
            async for delta in deltas:
                counts.add(delta)
                if is_first:
                    call.ticket.end_waiting()
                if answers is not None:
                    await answers.add(delta)
                yield delta
                if is_first:  # which has been sent
                    call.ticket.observe_first_token(delta.stats, had_media=prompts[0].had_media)
                    is_first = False
            self._metrics.count_encoder_cache_hits(usage.encoder_cache_hits)

    async def probe(self, prompt: LoadedPrompt, call: CallContext, *, cache_salt: str, adapter: str) -> RequestStats:
        """Returns what the engine would tell of a prompt with its first token if it were submitted now.

        Raises:
            EngineError: the engine refuses the prompt, or is gone.
            DeadlineExceededError: the call's deadline passed first.
        """
        request = Generate(
            request_id=self._engine.unique_id(call.request_id),
            token_ids=prompt.token_ids,
            media=[MediaInput(span=medium.span, content=memoryview(b"")) for medium in prompt.media],
            sampling=SamplingParams(max_tokens=1),
            cache_salt=call.tenant.engine_namespace(cache_salt),
            adapter=adapter,
            client=call.client,
            is_probe=True,
        )
        async with aclosing(_until(call.deadline, self._engine.generate(request))) as events:
            event = await anext(events)
        check_end(self._engine, event)
        return event.stats

    def quote(
        self, prompt: LoadedPrompt, messages: Sequence[ChatMessage], stats: RequestStats, call: CallContext
    ) -> Quote:
        return make_quote(prompt, messages, stats, call, self._tokenizer)

    async def _build_constraints(self, request: GenerationRequest, call: CallContext) -> OutputConstraints:
        constraints = self._constraints.find(request)
        if constraints is None:
            call.ticket.end_preparing()  # it may take long, and others can be prepared meanwhile
            ended = Event()
            try:
                async with within(call.deadline):
                    constraints = await builds.run(call.client, self._constraints.build, request, ended.is_set)
            finally:
                ended.set()
        call.unenforced = constraints.unenforced
        return constraints

    async def _prompt_deltas(
        self,
        request: GenerationRequest,
        prompt_index: int,
        prompt: LoadedPrompt,
        constraints: OutputConstraints,
        call: CallContext,
        flow: str,
        own: Stream[Delta],
    ) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of one prompt's completions. `flow` names the whole request."""
        reasoning = self._reasoning_tags(request, prompt)
        sampling = self._sampling(request, constraints, reasoning)
        generate = self._engine_request(request, prompt, sampling, call, flow)
        ids = [generate.request_id, *(sibling.request_id for sibling in generate.siblings)]
        indices = itertools.count(prompt_index * request.num_completions)
        images = placements(prompt.seen) if request.grounding else ()
        running = {
            each: _Completion(
                next(indices),
                self._new_parser(request, constraints, reasoning),
                self._new_grounding_reader(request, reasoning, images),
            )
            for each in ids
        }
        begun = set[int]()
        scores = None
        if sampling.prompt_logprobs is not None:
            scores = _PromptScores(self._tokenizer, prompt.token_ids, call.client)
        answers = self._engine.generate(generate, on_abandoned=charge_if_unused(call))
        async with aclosing(_until(call.deadline, answers)) as events:
            async for event in events:
                for each in (event,) if scores is None else await scores.ready(event):
                    if each.request_id not in running:
                        continue
                    if each.finish is not None:
                        check_end(self._engine, each)
                    if each.logprobs:
                        await turns.next(call.client)
                    completion = running[each.request_id]
                    delta = completion.read(each)
                    if delta.index not in begun:
                        begun.add(delta.index)
                        delta.prompt_token_ids = prompt.token_ids if request.return_token_ids else ()
                        delta.prompt_tokens = () if scores is None else scores.tokens
                    if delta.finish is not None:
                        delta.groundings = await completion.groundings(call.client)
                        del running[each.request_id]
                        if delta.stop_string and running:
                            self._engine.cancel(each.request_id)
                    yield delta
                    if not running:
                        return
                if len(begun) == len(ids) and own.receiver is not None and _may_be_received(sampling):
                    answers.receiver = own.receiver.of(lambda event: running[event.request_id].read(event))

    def _reasoning_tags(self, request: GenerationRequest, prompt: LoadedPrompt) -> ReasoningTags | None:
        """Returns the tags between which the completions of a prompt may reason; None if they do not."""
        if self._reasoning is None or request.reasoning is None:
            return None
        find_tags = self._reasoning.tags_after
        if request.reasoning.continues_message:
            find_tags = self._reasoning.tags_continuing
        tags = find_tags(prompt.token_ids, self._tokenizer)
        # White space before JSON means nothing. Other constraints may allow or require it.
        is_exact = request.constraint is not None and request.constraint.grammar.kind not in _JSON
        return tags if tags is None else replace(tags, strips_answer=not is_exact)

    def _new_parser(
        self, request: GenerationRequest, constraints: OutputConstraints, reasoning: ReasoningTags | None
    ) -> CompletionParser:
        hidden = frozenset[int]()
        if request.sampling.skip_special_tokens:
            visible = frozenset(token_id for _, token_id in reasoning.special_ids) if reasoning else frozenset[int]()
            hidden = self._tokenizer.special_ids - constraints.visible_special_ids - visible
        return self._parser(request, reasoning, hidden)

    def _new_grounding_reader(
        self, request: GenerationRequest, reasoning: ReasoningTags | None, images: Sequence[ImagePlacement]
    ) -> GroundingReader | None:
        """Returns None if the request does not ask for boxes and points, or has no images."""
        if not images:
            return None
        return GroundingReader(self._parser(request, reasoning, frozenset()), request.grounding, images)

    def _parser(
        self, request: GenerationRequest, reasoning: ReasoningTags | None, hidden: frozenset[int]
    ) -> CompletionParser:
        """Returns a parser whose text has all tokens but the hidden ones."""
        processor = OutputProcessor(
            self._tokenizer,
            stop=request.sampling.stop,
            include_stop=request.sampling.include_stop_str_in_output,
            min_tokens=request.sampling.min_tokens,
            logprobs=request.sampling.logprobs,
            hidden_ids=hidden,
        )
        reader = None if request.tools is None else self._constraints.tool_call_reader(request.tools)
        thoughts = None
        if reasoning is not None and request.reasoning is not None:
            thoughts = ReasoningReader(reasoning, self._tokenizer, include=request.reasoning.include)
        return CompletionParser(processor, reader, thoughts)

    def _sampling(
        self, request: GenerationRequest, constraints: OutputConstraints, reasoning: ReasoningTags | None
    ) -> SamplingParams:
        grammar, budget = constraints.grammar, None
        if reasoning is not None and grammar is not None:
            grammar = replace(grammar, reasoning=reasoning)
        if reasoning is not None and request.reasoning is not None and request.reasoning.max_tokens is not None:
            budget = ReasoningBudget(
                tags=reasoning,
                max_tokens=request.reasoning.max_tokens,
                closing_token_ids=tuple(self._tokenizer.encode(reasoning.closing)),
            )
        words = self._tokenizer.spell_words(request.sampling.bad_words)
        return replace(request.sampling, grammar=grammar, reasoning_budget=budget, bad_word_token_ids=words)

    def _engine_request(
        self, request: GenerationRequest, prompt: LoadedPrompt, sampling: SamplingParams, call: CallContext, flow: str
    ) -> Generate:
        unique = self._engine.unique_id(call.request_id)
        seed = request.sampling.seed
        return Generate(
            request_id=unique,
            token_ids=prompt.token_ids,
            media=prompt.media,
            sampling=sampling,
            priority=call.priority(request.priority),
            cache_salt=call.tenant.engine_namespace(request.cache_salt),
            adapter=request.adapter,
            client=call.client,
            flow=flow,
            digest=prompt_digest(prompt.token_ids, prompt.media),
            siblings=[
                Sibling(request_id=f"{unique}.{index}", seed=None if seed is None else seed + index)
                for index in range(1, request.num_completions)
            ],
        )


@dataclass(slots=True)
class _Completion:
    """A completion that has not ended."""

    index: int
    parser: CompletionParser
    grounding: GroundingReader | None

    def read(self, event: TokenEvent) -> Delta:
        delta = self.parser.feed(event)
        if self.grounding is not None:
            self.grounding.feed(event, delta)
        delta.index = self.index
        return delta

    async def groundings(self, client: str) -> tuple[Grounding, ...]:
        return () if self.grounding is None else await self.grounding.find(client)


@dataclass(slots=True)
class _Counts:
    """What is told of a request while it is answered."""

    request: GenerationRequest
    call: CallContext
    usage: Usage
    timer: RequestTimer

    def add(self, delta: Delta) -> Delta:
        """Adds a delta, and returns it as the request asks for it."""
        self.timer.observe_tokens(delta.index, len(delta.token_ids), delta.stats)
        if delta.finish is not None:
            self.timer.finish(delta.index, delta.finish)
        usage, call = self.usage, self.call
        usage.add_delta(delta.index // self.request.num_completions, delta)
        if self.request.return_timings:
            usage.timings = self.timer.timings(call.ticket.arrived, usage.media_usage)
        call.prompt_tokens, call.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        if not self.request.return_token_ids:
            delta.token_ids = ()
        return delta


def _may_be_received(sampling: SamplingParams) -> bool:
    """Whether a receiver may get later deltas: log-probabilities take long to render, and a stop string ends a
    completion before the engine does."""
    return not sampling.stop and sampling.logprobs is None and sampling.prompt_logprobs is None


class _PromptScores:
    """The log-probabilities of a prompt, which its first answer brings. The events of the others wait for them."""

    def __init__(self, tokenizer: Tokenizer, token_ids: Sequence[int], client: str) -> None:
        self._tokenizer = tokenizer
        self._client = client
        self._token_ids = token_ids
        self.tokens: tuple[TokenText, ...] = ()
        """Empty before the first event is ready."""
        self._waiting: list[TokenEvent] = []

    async def ready(self, event: TokenEvent) -> Sequence[TokenEvent]:
        """Returns the events that need not wait any more."""
        if self.tokens or event.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
            return (event,)
        self._waiting.append(event)
        if len(self._token_ids) > 1 and not event.prompt_logprobs:
            return ()
        size = _SCORED_TOKEN_BYTES * len(self._token_ids)
        self.tokens = await run_sized(
            self._client, size, prompt_token_texts, self._tokenizer, self._token_ids, event.prompt_logprobs
        )
        return self._waiting


def _check_scores(request: GenerationRequest, prompts: Sequence[LoadedPrompt]) -> None:
    """Raises InvalidRequest if the response would have too many log-probabilities of prompts."""
    num_top = request.sampling.prompt_logprobs
    if num_top is None:
        return
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    num_entries = num_tokens * (num_top + 1) * request.num_completions
    if num_entries > MAX_PROMPT_LOGPROBS:
        message = (
            f"expected at most {MAX_PROMPT_LOGPROBS} log-probabilities of prompts in a response, got {num_entries}: "
            f"{num_top + 1} for each of {num_tokens} tokens, in n={request.num_completions} answers; "
            "ask for fewer, or send shorter prompts"
        )
        raise InvalidRequest("generation.prompt_logprobs", message)


@contextmanager
def _counting_aborts(timer: RequestTimer) -> Generator[None]:
    """Records why completions do not finish that are still open when the block ends."""
    reason = "cancelled"
    try:
        yield
    except DeadlineExceededError:
        reason = "deadline_exceeded"
        raise
    except Exception:
        reason = "error"
        raise
    finally:
        timer.abort(reason)


def _until(deadline: float | None, events: Stream[TokenEvent]) -> Stream[TokenEvent] | AsyncGenerator[TokenEvent, None]:
    """Yields the events. Raises DeadlineExceededError if the deadline passes before the next one. Closes them."""
    return events if deadline is None else _timed(deadline, events)


async def _timed(deadline: float, events: Stream[TokenEvent]) -> AsyncGenerator[TokenEvent, None]:
    async with aclosing(events):
        while True:
            async with within(deadline):
                event = await anext(events, None)
            if event is None:
                return
            yield event
