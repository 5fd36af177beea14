"""Foresees when a prompt would have its first token, and how long what waits takes: plans the steps until then as the
scheduler would, in short, and adds up what such steps took recently."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, fields, replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.scheduler_state import SchedulerState
from glimpse.engine.core.sequence import RUNNING, Sequence
from glimpse.engine.core.step_planner import ScheduledStep
from glimpse.engine.protocol.messages import BACKGROUND_PRIORITY, INITIAL_ANSWER_TOKENS
from glimpse.engine.protocol.time_fit import TimeFit

_MAX_PLANNED = 32
"""Waiting prompts that are planned one by one. Those after them are taken to be like them."""
_MAX_PARTS = 8
"""Parts of a prompt that are planned one by one. Longer prompts have parts of several steps."""
_DECODE_INTERVAL = 8
"""One of so many steps that only decode is recorded: they are many, and alike."""
_MIN_PROMPT_STEPS = 8
"""Steps with prompts before waits are foreseen: the first read the weights and take long, and fewer do not tell what a
step takes from what its tokens take."""
_MEAN_SHARE = 0.05
"""Weight of an answer that has ended in the mean over answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When a sequence that arrives now would have its first token."""

    queue_seconds: float
    """Until the first step that computes its tokens."""
    encode_seconds: float
    """In the encoder, in the steps that encode its media."""
    first_token_seconds: float
    """In all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWait:
    """How long what waits takes, as in `StepStats`."""

    place_seconds: float
    token_seconds: float


NO_WAIT = ExpectedWait(place_seconds=0.0, token_seconds=0.0)


@dataclass(slots=True, kw_only=True)
class _Work:
    """What steps do."""

    num_steps: float = 0
    num_decodes: float = 0
    num_prompt_steps: float = 0
    num_prompt_tokens: float = 0
    num_attended: float = 0
    """Tokens before each computed one, added up."""
    num_media: float = 0
    """Media that are encoded."""
    num_rows: float = 0
    """Rows of their encoder outputs."""

    @property
    def computing(self) -> tuple[float, ...]:
        # Steps that only decode wait for weights, which those with prompts read beside their work.
        num_decode_steps = self.num_steps - self.num_prompt_steps
        return (self.num_decodes, num_decode_steps, self.num_prompt_steps, self.num_prompt_tokens, self.num_attended)

    @property
    def encoding(self) -> tuple[float, ...]:
        return (self.num_media, self.num_rows)

    def stretched(self, since: "_Work", factor: float) -> "_Work":
        """Returns the work with what was added since an earlier one multiplied."""
        before, now = ({each.name: getattr(work, each.name) for each in fields(self)} for work in (since, self))
        return _Work(**{name: before[name] + factor * (now[name] - before[name]) for name in now})


class StepCosts:
    """What the work of recent steps took, by its kinds: a `StepCurve` knows tokens, but not how many each attends."""

    def __init__(self) -> None:
        self._computing = TimeFit(5, least_likely=0)  # a step takes hardly longer with more decodes
        self._encoding = TimeFit(2)
        self._num_decode_steps = 0
        self.num_prompt_steps = 0
        """Steps with prompts that were measured."""
        self.answer_tokens = float(INITIAL_ANSWER_TOKENS)
        """Mean tokens of recent answers."""

    def observe(self, step: ScheduledStep, seconds: float, encode_seconds: float) -> None:
        """Records how long a step took, and its encoder."""
        work, chunks = step.work, step.plan.chunks
        is_decode = not work.num_prompt_tokens + work.num_media_tokens
        self.num_prompt_steps += not is_decode
        if is_decode:
            self._num_decode_steps += 1
            if self._num_decode_steps % _DECODE_INTERVAL != 1:
                return
        done = _Work(
            num_steps=1,
            num_decodes=work.num_decodes,
            num_prompt_steps=not is_decode,
            num_prompt_tokens=work.num_prompt_tokens,
            num_attended=sum(len(chunk.token_ids) * (chunk.start + len(chunk.token_ids) / 2) for chunk in chunks),
            num_media=len(step.plan.encode),
            num_rows=work.num_media_tokens,
        )
        self._computing.observe(done.computing, seconds - encode_seconds, group="decode" if is_decode else "prompt")
        if done.num_rows:
            self._encoding.observe(done.encoding, encode_seconds)

    def observe_answer(self, num_tokens: int) -> None:
        """Records the length of an answer that has ended."""
        self.answer_tokens += _MEAN_SHARE * (num_tokens - self.answer_tokens)

    def seconds(self, work: _Work) -> tuple[float, float] | None:
        """Returns what work would take to compute and to encode; None if nothing like it was measured."""
        computing = self._computing.seconds(work.computing, num_pieces=work.num_steps)
        encoding = self._encoding.seconds(work.encoding, num_pieces=work.num_media)
        if computing is None or (encoding is None and work.num_rows):
            return None
        return computing, encoding or 0.0


@dataclass(slots=True, kw_only=True)
class _Prompt:
    """What is left to compute of a prompt."""

    start: int
    end: int
    media: list[tuple[int, int]]
    """(first token, rows) of those to encode, in order."""
    num_wanted_blocks: tuple[int, ...] = ()
    """Free blocks that it takes, of each kind in `SchedulerState.tables`. Empty: it runs."""
    num_answer_tokens: float


_Share: TypeAlias = tuple[Sequence, int]
"""The most tokens that are computed of a sequence's prompt."""


@dataclass(order=True, slots=True)
class _Running:
    """A sequence that decodes or will."""

    last_step: float
    num_tokens: int = field(compare=False)
    num_blocks: tuple[int, ...] = field(compare=False)
    """Blocks that it frees in the end, of each kind."""


def forecast(sequence: Sequence, state: SchedulerState, limits: SchedulerLimits, costs: StepCosts) -> Forecast | None:
    """Returns when a sequence that the scheduler does not have would have its first token if it were added now.

    Returns:
        None: too little was measured.
    """
    own = _prompt_of(sequence, state, costs)
    encoding = _Work(num_media=len(own.media), num_rows=sum(rows for _, rows in own.media))
    num_own_tokens = own.end - own.start + int(encoding.num_rows * state.prefill_budget.media_weight)
    before, beside = _prompts_until(sequence, num_own_tokens, state)
    schedule = _Schedule(state, limits, costs)
    schedule.compute_all(before)
    schedule.admit(own)
    queue = costs.seconds(schedule.start)
    schedule.compute_all(beside)
    schedule.compute(own)
    schedule.end_step()
    whole, encode = costs.seconds(schedule.work), costs.seconds(encoding)
    if queue is None or whole is None or encode is None:
        return None
    return Forecast(queue_seconds=sum(queue), encode_seconds=encode[1], first_token_seconds=sum(whole))


def foresee_wait(state: SchedulerState, limits: SchedulerLimits, costs: StepCosts) -> ExpectedWait:
    """Returns how long prompts wait until all of them are computed; nothing if there is none but in the background, or
    too little was measured."""
    if costs.num_prompt_steps < _MIN_PROMPT_STEPS:
        return NO_WAIT
    running, waiting = (
        [
            each
            for each in sequences
            if not each.decodes and not each.is_complete and each.request.priority < BACKGROUND_PRIORITY
        ]
        for sequences in (state.running, state.queue.waiting())
    )
    schedule = _Schedule(state, limits, costs)
    schedule.compute_all([(each, each.num_tokens) for each in running])  # a long one is not like those that wait
    before_place = costs.seconds(schedule.work)
    first = [_prompt_of(each, state, costs) for each in waiting[:1]]
    for prompt in first:
        schedule.admit(prompt)
    place = costs.seconds(schedule.work)
    for prompt in first:
        schedule.compute(prompt)
    schedule.compute_all([(each, each.num_tokens) for each in waiting[1:]])
    schedule.end_step()
    whole = costs.seconds(schedule.work)
    num_tokens = sum(each.num_tokens + _answer_left(each, costs) for each in (*running, *waiting))
    if before_place is None or place is None or whole is None or not num_tokens:
        return NO_WAIT
    place_seconds = sum(place) - sum(before_place)
    return ExpectedWait(place_seconds=place_seconds, token_seconds=(sum(whole) - place_seconds) / num_tokens)


class _Schedule:
    """Steps being planned: the work of all so far, and what is left of the last one."""

    def __init__(self, state: SchedulerState, limits: SchedulerLimits, costs: StepCosts) -> None:
        self.work = _Work()
        self._state, self._costs = state, costs
        self._budget = state.prefill_budget
        self._max_tokens = limits.max_batch_tokens
        self._max_sequences = limits.max_running
        self._num_expected = state.num_expected_decodes
        self._num_free_blocks = [tables.num_free for tables in state.tables]
        is_shared = state.queue.num_urgent_clients > 1
        self._max_decodes = (state.decode_turns.max_decodes() if is_shared else None) or limits.max_sequences
        self._running = [
            _Running(_answer_left(each, costs), each.num_tokens, self._blocks_of(each.num_tokens))
            for each in state.running
            if each.decodes and not each.flow.client.is_background
        ]
        heapify(self._running)
        self._num_prompts = len(state.running) - len(self._running)
        self._completed = list[_Prompt]()  # in the step being planned: they decode from the next one on
        self._before = self.work
        self._tokens = self._step_tokens = self._step_rows = 0
        self._begin_step()

    @property
    def start(self) -> _Work:
        """The work of the steps before the one to which the next tokens of a prompt are added."""
        return self._before if self._tokens > 0 else self.work

    def compute_all(self, shares: Many[_Share]) -> None:
        """Plans the steps that compute shares of the prompts of sequences."""
        begun = replace(self.work)
        for sequence, num_tokens in shares[:_MAX_PLANNED]:
            prompt = _prompt_of(sequence, self._state, self._costs)
            prompt.end = min(prompt.end, prompt.start + num_tokens)
            self.admit(prompt)
            self.compute(prompt)
        if len(shares) > _MAX_PLANNED:
            self.work = self.work.stretched(begun, len(shares) / _MAX_PLANNED)
            self._before = replace(self.work)

    def admit(self, prompt: _Prompt) -> None:
        """Plans steps that only decode until a prompt has a place, unless it runs."""
        num_blocks = prompt.num_wanted_blocks
        while (
            num_blocks
            and (self._running or self._completed)
            and (len(self._running) + self._num_prompts >= self._max_sequences or self._lacks(num_blocks))
        ):
            self.end_step(1 if self._completed else max(1, int(self._running[0].last_step - self.work.num_steps)))
        self._change_free(-1, num_blocks)
        self._num_prompts += bool(num_blocks)

    def compute(self, prompt: _Prompt) -> None:
        """Plans the steps that compute a prompt that has a place."""
        position, media = prompt.start, prompt.media
        while position < prompt.end:
            end = min(prompt.end, position + max(self._tokens, 0))
            max_rows = (self._tokens - (end - position)) / self._budget.media_weight
            while media and media[0][0] < end:
                first, rows = media[0]
                if self._step_rows and rows > max_rows:
                    end = max(first, position)
                    break
                del media[0]
                max_rows -= rows
                self._step_rows += rows
                self._tokens -= int(rows * self._budget.media_weight)
                self.work.num_media += 1
                self.work.num_rows += rows
            if end <= position:
                self.end_step()
                continue
            # A part of several equal steps.
            num_parts = (prompt.end - position) // max(_MAX_PARTS * (end - position), 1)
            repeats = 1 if media or self._completed else max(1, num_parts)
            length = (end - position) * repeats
            self._add_prompt(position, length)
            position += length
            if repeats > 1:
                self.end_step(repeats)
        self._completed.append(prompt)

    def end_step(self, repeats: int = 1) -> None:
        """Ends a step, or a part of several that are equal."""
        decodes = self._running[: self._max_decodes]
        self.work.num_steps += repeats
        self.work.num_decodes += repeats * self._num_decodes
        self.work.num_prompt_steps += repeats * bool(self._step_tokens)
        self.work.num_attended += repeats * sum(each.num_tokens for each in decodes)
        for each in self._completed:
            heappush(self._running, self._decoding(each))
        self._num_prompts -= len(self._completed)
        self._completed.clear()
        while self._running and self._running[0].last_step <= self.work.num_steps:
            self._change_free(1, heappop(self._running).num_blocks)
        self._begin_step()

    def _decoding(self, prompt: _Prompt) -> _Running:
        """Returns a prompt that is computed. Of the blocks that it took, it gives back those before its window."""
        num_blocks = self._blocks_of(prompt.end)
        if prompt.num_wanted_blocks:
            num_blocks = tuple(map(min, num_blocks, prompt.num_wanted_blocks))
            self._change_free(1, prompt.num_wanted_blocks)
            self._change_free(-1, num_blocks)
        return _Running(self.work.num_steps - 1 + prompt.num_answer_tokens, prompt.end, num_blocks)

    def _blocks_of(self, num_tokens: int) -> tuple[int, ...]:
        return tuple(tables.num_held_of(num_tokens) for tables in self._state.tables)

    def _lacks(self, num_blocks: Many[int]) -> bool:
        return any(free < wanted for free, wanted in zip(self._num_free_blocks, num_blocks, strict=True))

    def _change_free(self, sign: int, num_blocks: Many[int]) -> None:
        for index, number in enumerate(num_blocks):
            self._num_free_blocks[index] += sign * number

    @property
    def _num_decodes(self) -> int:
        return min(len(self._running), self._max_decodes)

    def _begin_step(self) -> None:
        most = self._max_tokens
        if self._running:
            most = self._budget.num_prompt_tokens(self._num_decodes, num_expected=self._num_expected)
        elif self._state.decode_turns.expects_newcomers:
            most = self._budget.num_brief_tokens
        self._tokens = min(self._max_tokens - self._num_decodes, most)
        self._step_tokens = self._step_rows = 0
        self._before = replace(self.work)

    def _add_prompt(self, position: int, length: int) -> None:
        self._tokens -= length
        self._step_tokens += length
        self.work.num_prompt_tokens += length
        self.work.num_attended += length * (position + length / 2)


def _prompts_until(sequence: Sequence, num_own_tokens: int, state: SchedulerState) -> tuple[list[_Share], list[_Share]]:
    """Returns what is computed of other prompts before that of `sequence` begins, and from then on until it ends.

    Clients take turns, the one served least first: until the prompt ends, each is computed as much as its client has. A
    client has its running prompts, then its waiting ones in their order.
    """
    queue, own = state.queue, sequence.request
    prompts: dict[str, list[Sequence]] = {own.client: []}
    for each in (*state.running, *queue.waiting()):
        if not each.decodes and not each.is_complete and each.request.priority <= own.priority:
            prompts.setdefault(each.request.client, []).append(each)
    service = queue.service_by_client()
    before = [(each, each.num_tokens) for each in prompts.pop(own.client)]
    begin = service.get(own.client, min(service.values(), default=0))
    begin += sum(each.num_tokens - each.num_computed_tokens for each, _ in before)
    beside = list[_Share]()
    for client, others in prompts.items():
        served = service[client]
        for each in others:
            if served >= begin + num_own_tokens:
                break
            num_tokens = each.num_tokens - each.num_computed_tokens
            (before if served < begin else beside).append((each, begin + num_own_tokens - served))
            served += num_tokens
    return before, beside


def _prompt_of(sequence: Sequence, state: SchedulerState, costs: StepCosts) -> _Prompt:
    is_running = sequence.status is RUNNING
    matched = [] if is_running else state.prefix_cache.match(sequence)
    start = sequence.num_computed_tokens if is_running else len(matched) * state.block_size
    keys = dict[bytes, tuple[int, int]]()
    for span in sequence.request.spans:
        first = next(span.rows_between(start, span.end), None)
        if first is not None and not state.encoder_cache.holds(span.key):
            keys.setdefault(span.key, (first[1], span.num_rows))
    return _Prompt(
        start=start,
        end=sequence.num_tokens,
        media=sorted(keys.values()),
        num_wanted_blocks=() if is_running else tuple(state.wanted_blocks(sequence, matched).values()),
        num_answer_tokens=_answer_left(sequence, costs),
    )


def _answer_left(sequence: Sequence, costs: StepCosts) -> float:
    return min(
        sequence.request.max_num_tokens - sequence.num_tokens, max(costs.answer_tokens - sequence.num_generated, 1.0)
    )
