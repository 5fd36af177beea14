"""A runner without a model that checks plans.

For each KV slot and each state it keeps a fingerprint of everything that its contents would depend on, so a plan that
wrongly shares, overwrites or skips something fails here. It samples from the fingerprints, so such errors also show in
answers, and it pools them into embeddings: the last one, or all of them for a mean. Like a device it may execute plans
long after they were launched, but in order.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec

from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.memory.encoder_cache import EncoderCache
from glimpse.engine.core.plan import (
    NO_STATE,
    PENDING_TOKEN_ID,
    Sample,
    SequenceChunk,
    SequenceStart,
    StepPlan,
    StepResult,
)
from glimpse.engine.core.request import ModelSpec, namespace_key
from glimpse.engine.errors import OutOfDeviceMemoryError
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import Embed, Generate, MediaInput, Sibling, Step, TokenEvent
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.engine.protocol.sampling_params import Grammar, SamplingParams
from glimpse.media.kind import MediaKind

VOCAB_SIZE = 8
EOS = 7
PLACEHOLDER = 0
HIDDEN_SIZE = 2
ENCODER_BYTES_PER_ROW = 10
SALTS = ("salt", "other salt", *map(str, range(20)))
"""The salts that requests with media may have."""


def key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def image_input(name: str, start: int, num_tokens: int, runs: tuple[tuple[int, int], ...] = ()) -> MediaInput:
    """Returns an image for a prompt, by default without literal tokens."""
    grid = (1, 2, 2 * num_tokens)
    span = MediaSpan(kind=MediaKind.IMAGE, start=start, num_tokens=num_tokens, runs=runs, key=key(name), grid=grid)
    return MediaInput(span=span, content=memoryview(name.encode()))


def generate(
    request_id: str,
    token_ids: Iterable[int],
    *media: MediaInput,
    sampling: SamplingParams | None = None,
    priority: int = 0,
    cache_salt: str = "",
    client: str = "",
    num_completions: int = 1,
) -> Generate:
    """Returns a request, by default for one token."""
    return Generate(
        request_id=request_id,
        token_ids=list(token_ids),
        media=list(media),
        sampling=sampling or SamplingParams(max_tokens=1),
        priority=priority,
        cache_salt=cache_salt,
        client=client,
        siblings=[Sibling(request_id=f"{request_id}.{index}", seed=None) for index in range(1, num_completions)],
    )


def embed(
    request_id: str,
    token_ids: Iterable[int],
    *media: MediaInput,
    mode: PoolingMode = PoolingMode.LAST_TOKEN,
    priority: int = 0,
    cache_salt: str = "",
    client: str = "",
) -> Embed:
    return Embed(
        request_id=request_id,
        token_ids=list(token_ids),
        media=list(media),
        pooling=PoolingParams(mode=mode),
        priority=priority,
        cache_salt=cache_salt,
        client=client,
    )


def embedding_of(request: Embed) -> bytes:
    """Returns the embedding that the runner makes of a prompt."""
    spans = [replace(each.span, key=namespace_key(each.span.key, request.cache_salt)) for each in request.media]
    prints = fingerprints(request.token_ids, spans)
    return b"".join(prints) if request.pooling.mode is PoolingMode.MEAN else prints[-1]


def fingerprints(token_ids: Many[int], spans: Many[MediaSpan]) -> list[bytes]:
    """Returns for each token what its KV depends on: all tokens up to it, and the parts of images in them."""
    prints: list[bytes] = []
    rows = {index: (span.key, row) for span in spans for row, index in enumerate(placeholders(span))}
    for index, token_id in enumerate(token_ids):
        part = [rows[index]] if index in rows else []
        before = prints[-1] if prints else b""
        prints.append(hashlib.blake2b(before + repr((token_id, part)).encode(), digest_size=8).digest())
    return prints


def placeholders(span: MediaSpan) -> list[int]:
    """Returns the indices in the prompt of a medium's placeholder tokens."""
    return [span.start + offset + index for offset, length in span.runs for index in range(length)]


def next_token(fingerprint: bytes) -> int:
    """Returns the token that follows: any of the vocabulary."""
    return fingerprint[0] % VOCAB_SIZE


@dataclass(kw_only=True)
class KnownSequence:
    """What the runner knows about a sequence."""

    token_ids: list[int]
    spans: tuple[MediaSpan, ...]
    num_computed: int | None = 0
    """None after a restart: the plan does not say how much is computed."""
    pooling: PoolingParams | None = None
    pooled: list[bytes] = field(default_factory=list[bytes])
    """Fingerprints of the tokens computed since the first one, if their mean is wanted."""


@dataclass(kw_only=True)
class LaunchedPlan:
    """A launched plan."""

    runner: "CheckingRunner"
    plan: StepPlan
    outcome: StepResult | Exception | None = None

    def execute(self) -> None:
        if self.outcome is None:
            try:
                self.outcome = self.runner.execute(self.plan)
            except (RuntimeError, OutOfDeviceMemoryError) as error:
                self.outcome = error

    def result(self) -> StepResult:
        assert self.runner.launched.pop(0) is self, "results must be requested in the order of launches"
        self.execute()
        if isinstance(self.outcome, StepResult):
            return self.outcome
        assert self.outcome is not None
        for later in self.runner.launched:
            later.outcome = RuntimeError("a step before it failed")
        raise self.outcome


@dataclass(kw_only=True)
class CheckingRunner:
    """Executes plans and checks each."""

    limits: SchedulerLimits
    encoder_capacity_tokens: int
    fails: str = ""
    """Raises in the next step with chunks, "before" or "after" execution. If it ends in "memory": out of memory."""
    lazy: bool = False
    """Plans are executed when their results are requested, not when they are launched."""
    mistakes: list[bool] = field(default_factory=list[bool])
    """For each of the next sampled tokens: whether the next plan uses another token in its place."""
    mispredictions: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Sequence id → the token that the next plan uses by mistake, and the sampled one."""
    launched: list[LaunchedPlan] = field(default_factory=list[LaunchedPlan])
    """Plans whose results have not been requested yet."""
    seconds: float = 0.0
    """The duration of a step, on the core's clock."""
    seconds_per_token: float = 0.0
    """What each token adds to it."""
    now: float = 0.0
    script: list[int] = field(default_factory=list[int])
    """The next tokens to sample, instead of those of the fingerprints."""
    plans: list[StepPlan] = field(default_factory=list[StepPlan])
    slots: list[bytes] = field(default_factory=list[bytes])
    sliding_slots: list[bytes] = field(default_factory=list[bytes])
    sequences: dict[int, KnownSequence] = field(default_factory=dict[int, KnownSequence])
    resident: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Key of an encoder output → its tokens."""
    begun: set[int] = field(default_factory=set[int])
    forgiving: bool = False
    """The last step failed: this one may contain unknown ids and keys."""

    def __post_init__(self) -> None:
        self.slots = [b""] * (self.limits.num_blocks * self.limits.block_size)
        self.sliding_slots = [b""] * (self.limits.num_sliding_blocks * self.limits.block_size)
        self.states = [b""] * self.limits.num_states

    def launch(self, plan: StepPlan) -> LaunchedPlan:
        assert plan != StepPlan()
        self.plans.append(plan)
        step = LaunchedPlan(runner=self, plan=plan)
        if not self.lazy:
            step.execute()
            if isinstance(step.outcome, Exception):
                raise step.outcome
        self.launched.append(step)
        return step

    def execute(self, plan: StepPlan) -> StepResult:
        self.now += self.seconds + self.seconds_per_token * plan.num_tokens
        failing, self.fails = (self.fails, "") if plan.chunks else ("", self.fails)
        failure = OutOfDeviceMemoryError() if failing.endswith("memory") else RuntimeError("injected failure")
        if failing.startswith("before"):
            self.forgiving = True
            raise failure
        self._forget(plan)
        self.forgiving = False
        for start in plan.started:
            self._begin(start)
        self._encode(plan)
        mispredictions, self.mispredictions = self.mispredictions, {}
        chunks = [self._resolved(chunk, mispredictions) for chunk in plan.chunks]
        self._compute(plan, chunks)
        embeddings = {chunk.sequence_id: data for chunk in chunks if (data := self._pool(chunk)) is not None}
        samples = {chunk.sequence_id: self._sample(chunk) for chunk in chunks if chunk.samples}
        mispredicted = frozenset(self.mispredictions)
        for sequence_id, (_, sampled) in mispredictions.items():
            self._take_back(sequence_id, sampled, chunks)
        if failing.startswith("after"):
            self.forgiving = True
            for _, state in written_states(chunks):
                self.states[state] = b"some layers have written it"
            raise failure
        return StepResult(
            samples={sequence_id: own[-1] for sequence_id, own in samples.items()},
            accepted={sequence_id: own[:-1] for sequence_id, own in samples.items()},
            proposed={chunk.sequence_id: self._propose(chunk) for chunk in chunks if chunk.num_proposed_tokens},
            embeddings=embeddings,
            mispredicted=mispredicted,
        )

    def _begin(self, start: SequenceStart) -> None:
        assert start.sequence_id not in self.sequences
        self.sequences[start.sequence_id] = KnownSequence(
            token_ids=[*start.prompt_token_ids, *start.generated_token_ids],
            spans=start.spans,
            num_computed=None if start.sequence_id in self.begun else 0,
            pooling=start.pooling,
        )
        self.begun.add(start.sequence_id)

    def _resolved(self, chunk: SequenceChunk, mispredictions: dict[int, tuple[int, int]]) -> SequenceChunk:
        """Returns a chunk with its pending token filled in, possibly by mistake with another one."""
        if PENDING_TOKEN_ID not in chunk.token_ids:
            mispredictions.pop(chunk.sequence_id, None)
            return chunk
        assert chunk.token_ids.index(PENDING_TOKEN_ID) == len(chunk.token_ids) - 1
        assert not chunk.num_draft_tokens
        sequence = self.sequences[chunk.sequence_id]
        if chunk.sequence_id in mispredictions:
            sequence.token_ids[-1] = mispredictions[chunk.sequence_id][0]
        return msgspec.structs.replace(chunk, token_ids=(*chunk.token_ids[:-1], sequence.token_ids[-1]))

    def _take_back(self, sequence_id: int, sampled: int, chunks: Many[SequenceChunk]) -> None:
        """Takes back what was computed from a mispredicted token."""
        for chunk in chunks:
            if chunk.sequence_id == sequence_id:
                sequence = self.sequences[sequence_id]
                sequence.token_ids[chunk.start + len(chunk.token_ids) - 1 :] = [sampled]
                sequence.num_computed = chunk.start
                self.mispredictions.pop(sequence_id, None)

    def _forget(self, plan: StepPlan) -> None:
        assert len(set(plan.ended)) == len(plan.ended)
        assert len(set(plan.evicted)) == len(plan.evicted)
        for sequence_id in plan.ended:
            assert self.forgiving or sequence_id in self.sequences
            self.sequences.pop(sequence_id, None)
        for evicted in plan.evicted:
            assert self.forgiving or evicted in self.resident
            self.resident.pop(evicted, None)

    def _encode(self, plan: StepPlan) -> None:
        spans = {s.key: s for chunk in plan.chunks for s in self.sequences[chunk.sequence_id].spans}
        for item in plan.encode:
            assert item.key not in self.resident, "encoded twice"
            assert isinstance(item.content, memoryview)
            own_key = key(bytes(item.content).decode())
            assert item.key in (own_key, *(namespace_key(own_key, salt) for salt in SALTS))
            assert item.grid == spans[item.key].grid
            self.resident[item.key] = spans[item.key].num_rows
        assert sum(self.resident.values()) <= self.encoder_capacity_tokens

    def _compute(self, plan: StepPlan, chunks: Many[SequenceChunk]) -> None:
        assert plan.num_tokens <= self.limits.max_batch_tokens
        assert len({chunk.sequence_id for chunk in chunks}) == len(chunks) <= self.limits.max_sequences
        self._check_states(chunks)
        before = {chunk.sequence_id: self._read(chunk)[: chunk.start] for chunk in chunks}
        windows_before = {chunk.sequence_id: self._read_window(chunk)[: -len(chunk.token_ids)] for chunk in chunks}
        for chunk in chunks:
            self._write(chunk)
        for chunk in chunks:
            expected = self._expected(chunk)
            assert before[chunk.sequence_id] == expected[: chunk.start], "computed on a wrong prefix"
            assert self._read(chunk) == expected, "overwritten in the same step"
            if self.limits.sliding_window is not None:
                window = expected[self._window_start(chunk) :]
                assert windows_before[chunk.sequence_id] == window[: -len(chunk.token_ids)], "a wrong window"
                assert self._read_window(chunk) == window, "a window overwritten in the same step"
            end = chunk.start
            for num_tokens, state in written_states([chunk]):
                end += num_tokens
                self.states[state] = expected[end - 1]

    def _check_states(self, chunks: Many[SequenceChunk]) -> None:
        """Checks that states are read as their tokens left them, and written only by those who may."""
        written = [state for _, state in written_states(chunks)]
        assert len(written) == len(set(written))
        for chunk in chunks:
            assert (chunk.states is None) == (self.limits.num_states == 0)
            if chunk.states is None:
                continue
            reads, own = chunk.states.reads, [state for _, state in chunk.states.writes]
            assert sum(num_tokens for num_tokens, _ in chunk.states.writes) == len(chunk.token_ids)
            assert all(num_tokens > 0 for num_tokens, _ in chunk.states.writes)
            assert (reads == NO_STATE) == (chunk.start == 0)
            assert reads not in own[1:]
            assert reads in own or reads not in written, "read while another sequence writes it"
            if chunk.start:
                assert self.states[reads] == self._expected(chunk)[chunk.start - 1], "a wrong state"

    def _write(self, chunk: SequenceChunk) -> None:
        sequence = self.sequences[chunk.sequence_id]
        end = chunk.start + len(chunk.token_ids)
        assert chunk.token_ids
        known_end = end - chunk.num_draft_tokens
        assert list(chunk.token_ids[: known_end - chunk.start]) == sequence.token_ids[chunk.start : known_end]
        assert chunk.samples == (known_end == len(sequence.token_ids) and sequence.pooling is None)
        assert chunk.samples or not chunk.num_draft_tokens
        assert sequence.num_computed in (chunk.start, None) or chunk.start % self.limits.block_size == 0
        assert len(chunk.block_table) >= -(-end // self.limits.block_size)
        assert len(chunk.block_table) == len(set(chunk.block_table))
        for span in sequence.spans:
            assert span.key in self.resident or not any(chunk.start <= index < end for index in placeholders(span))
        sequence.num_computed = known_end
        prints = self._expected(chunk)
        for index in range(chunk.start, end):
            self.slots[self._slot(chunk, index)] = prints[index]
            if self.limits.sliding_window is not None:
                self.sliding_slots[self._sliding_slot(chunk, index)] = prints[index]

    def _expected(self, chunk: SequenceChunk) -> list[bytes]:
        """Returns what the slots of all tokens up to the end of a chunk must contain."""
        sequence = self.sequences[chunk.sequence_id]
        return fingerprints([*sequence.token_ids[: chunk.start], *chunk.token_ids], sequence.spans)

    def _read(self, chunk: SequenceChunk) -> list[bytes]:
        return [self.slots[self._slot(chunk, index)] for index in range(chunk.start + len(chunk.token_ids))]

    def _slot(self, chunk: SequenceChunk, index: int) -> int:
        return self._place(chunk.block_table, index)

    def _read_window(self, chunk: SequenceChunk) -> list[bytes]:
        """Returns what the slots of sliding layers contain, of all tokens that the chunk's attend to."""
        end = chunk.start + len(chunk.token_ids)
        indices = range(self._window_start(chunk), end) if self.limits.sliding_window is not None else ()
        return [self.sliding_slots[self._sliding_slot(chunk, index)] for index in indices]

    def _window_start(self, chunk: SequenceChunk) -> int:
        window = self.limits.sliding_window
        return 0 if window is None else max(chunk.start + 1 - window.num_tokens, 0)

    def _sliding_slot(self, chunk: SequenceChunk, index: int) -> int:
        assert chunk.sliding_table is not None
        return self._place(chunk.sliding_table, index)

    def _place(self, table: Many[int], index: int) -> int:
        block, offset = divmod(index, self.limits.block_size)
        return table[block] * self.limits.block_size + offset

    def _pool(self, chunk: SequenceChunk) -> bytes | None:
        """Returns the embedding of a sequence that pools, once its prompt is computed."""
        sequence, prints = self.sequences[chunk.sequence_id], self._read(chunk)
        if sequence.pooling is None:
            return None
        if sequence.pooling.mode is PoolingMode.MEAN:
            sequence.pooled = sequence.pooled if chunk.start else []
            assert len(sequence.pooled) == chunk.start, "tokens whose hidden states are missing"
            sequence.pooled += prints[chunk.start :]
        is_complete = len(prints) == len(sequence.token_ids)
        return b"".join(sequence.pooled or prints[-1:]) if is_complete else None

    def _sample(self, chunk: SequenceChunk) -> tuple[Sample, ...]:
        """Samples as long as the tokens equal the draft tokens, and one more."""
        sequence, prints = self.sequences[chunk.sequence_id], self._read(chunk)
        samples: list[Sample] = []
        for index in range(len(prints) - 1 - chunk.num_draft_tokens, len(prints)):
            token_id = self.script.pop(0) if self.script else next_token(prints[index])
            samples.append(Sample(token_id=token_id))
            sequence.token_ids.append(token_id)
            if self.mistakes and self.mistakes.pop(0):
                self.mispredictions[chunk.sequence_id] = ((token_id + 1) % VOCAB_SIZE, token_id)
            if index + 1 == len(prints) or token_id != chunk.token_ids[index + 1 - chunk.start]:
                break
            sequence.num_computed = (sequence.num_computed or 0) + 1
        return tuple(samples)

    def _propose(self, chunk: SequenceChunk) -> tuple[int, ...]:
        """Proposes the tokens that follow a sequence, but a wrong one for each third of it."""
        sequence = self.sequences[chunk.sequence_id]
        token_ids = [*sequence.token_ids]
        for _ in range(chunk.num_proposed_tokens):
            following = next_token(fingerprints(token_ids, sequence.spans)[-1])
            token_ids.append(following if len(token_ids) % 3 else following ^ 1)
        return tuple(token_ids[len(sequence.token_ids) :])


def written_states(chunks: Iterable[SequenceChunk]) -> Iterator[tuple[int, int]]:
    """Yields (number of tokens, state) of what the chunks write."""
    for chunk in chunks:
        yield from () if chunk.states is None else chunk.states.writes


LIMITS = SchedulerLimits(
    num_blocks=16,
    block_size=4,
    max_model_len=64,
    max_batch_tokens=64,
    max_sequences=8,
    encoder_bytes_per_row=ENCODER_BYTES_PER_ROW,
    encoder_cache_bytes=0,
    prefix_caching=True,
    max_decode_slowdown=1000.0,
)
"""Limits of a small core."""


def make_core(
    *,
    num_blocks: int = LIMITS.num_blocks,
    block_size: int = LIMITS.block_size,
    max_model_len: int | None = None,
    max_waiting: int = 100,
    encoder_cache_tokens: int = 0,
    async_scheduling: bool = False,
    lazy: bool = False,
    compile_grammar: Callable[[Grammar], Future[object]] | None = None,
    **limits: Any,
) -> tuple[Core, CheckingRunner]:
    """Returns a core over a checking runner, with its clock. The default context window fills all blocks.

    `limits`: what else differs from `LIMITS`.
    """
    changed = replace(
        LIMITS,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len or num_blocks * block_size,
        encoder_cache_bytes=encoder_cache_tokens * ENCODER_BYTES_PER_ROW,
        **limits,
    )
    capacity = max(encoder_cache_tokens, changed.max_model_len)
    runner = CheckingRunner(limits=changed, encoder_capacity_tokens=capacity, lazy=lazy)
    core = Core(
        runner=runner,
        model=ModelSpec(vocab_size=VOCAB_SIZE, encoder_row_width=HIDDEN_SIZE, eos_token_ids=(EOS,)),
        limits=changed,
        max_waiting=max_waiting,
        async_scheduling=async_scheduling,
        compile_grammar=compile_grammar,
        clock=lambda: runner.now,
    )
    return core, runner


def run_until_idle(core: Core, max_steps: int = 1000) -> list[Step]:
    """Steps until there is no work left. Fails if that takes more than `max_steps`."""
    steps: list[Step] = []
    while core.has_work:
        assert len(steps) < max_steps, "no progress"
        steps.append(core.step())
    return steps


def num_pinned(cache: EncoderCache) -> int:
    """Returns how many outputs sequences pin."""
    return len(cache._pinned)  # pyright: ignore[reportPrivateUsage]


def events_of(core: Core) -> list[TokenEvent]:
    """Steps until there is no work left, and returns what all steps tell."""
    return [event for step in run_until_idle(core) for event in step.events]


def tokens_of(events: Iterable[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def answers(steps: Iterable[Step]) -> dict[str, list[int]]:
    """Returns the tokens of each request id."""
    tokens: dict[str, list[int]] = {}
    for event in chain.from_iterable(step.events for step in steps):
        tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens
