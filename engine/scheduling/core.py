"""The engine's loop body: takes requests, plans a step, has it executed, and says what it brought to whom.

Whatever happens to a request, exactly one of its events bears `finish`, and nothing of it stays behind. The caller
submits and cancels between steps. Knows no model and no transport.

Where the device computes beside the processor, the next step is planned and launched before the results of this one are
waited for: all of it is foreseeable but the ids of the tokens that this one samples, which the runner passes on. Only a
sequence that ends by what it says is then computed once in vain. Where a sequence's choice of tokens needs those before
on the host, the next step waits. Executing one step after the other is the case in which nothing is launched ahead.

A request whose answer follows a grammar is not scheduled before that is compiled, which happens beside the steps: it
takes milliseconds as a rule, but some take a second, which is to be at the cost of nobody else.
"""

import logging
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from glimpse.engine.errors import EngineError, EngineErrorCode, OutOfDeviceMemoryError
from glimpse.engine.plan import CompletedStep, InFlightStep, Sample, StepPlan, StepResult
from glimpse.engine.protocol import FinishReason, Generate, Step, StepStats, TokenEvent, TokenLogprobs
from glimpse.engine.sampling_params import Grammar
from glimpse.engine.scheduling.grammar_queue import CompilingQueue
from glimpse.engine.scheduling.prefill_budget import StepWork
from glimpse.engine.scheduling.scheduler import Scheduler
from glimpse.engine.scheduling.sequence import Sequence, make_sequence
from glimpse.engine.scheduling.step_builder import Scheduled

_logger = logging.getLogger(__name__)

_NOTHING = Scheduled(
    plan=StepPlan(),
    sequences=(),
    num_cached_tokens=0,
    num_preemptions=0,
    work=StepWork(num_decodes=0, num_prompt_tokens=0, num_media_tokens=0),
)


class Runner(Protocol):
    """What executes plans."""

    def launch(self, plan: StepPlan) -> InFlightStep:
        """Begins to carry a plan out, in the order that StepPlan gives and after all plans launched before.

        If this or the result raises, nothing of the step counts. The next plan repeats its `ended` and `evicted`,
        evicts what it should have encoded, and ends its sequences or begins them anew: there the runner ignores names
        that it does not know. OutOfDeviceMemoryError costs one sequence, anything else all of the step.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """A step that could not be launched."""

    error: Exception

    def result(self) -> NoReturn:
        raise self.error


@dataclass(slots=True, kw_only=True)
class _Launched:
    """A step under way."""

    scheduled: Scheduled
    pending: InFlightStep
    started_at: float
    is_completed: bool = False
    """The scheduler counts it as computed, and its tokens are promised."""

    @property
    def is_foreseeable(self) -> bool:
        """Of what it brings, the next step needs on the host nothing that is not known by now."""
        pairs = zip(self.scheduled.sequences, self.scheduled.plan.chunks, strict=True)
        return not isinstance(self.pending, _Broken) and not any(
            chunk.samples and (sequence.sampling.adjusts or chunk.num_draft_tokens) for sequence, chunk in pairs
        )


class Core:
    """All requests in flight."""

    def __init__(
        self,
        *,
        runner: Runner,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_batch_tokens: int,
        max_sequences: int,
        max_waiting: int,
        eos_token_ids: tuple[int, ...],
        encoder_bytes_per_token: int,
        encoder_cache_bytes: int,
        prefix_caching: bool,
        vocab_size: int,
        hidden_size: int,
        max_decode_slowdown: float,
        max_draft_tokens: int = 0,
        async_scheduling: bool = False,
        prepare: Callable[[], bool] = lambda: False,
        compile_grammar: Callable[[Grammar], Future[Any]] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`async_scheduling` launches steps ahead; `prepare` is what the method of this name does.

        `compile_grammar` begins to compile a grammar, if it is not yet compiled; what comes of it does not matter here.

        Raises:
            ValueError: the blocks do not hold a sequence that fills the context window, or a step is allowed nothing,
                or guesses are to be made at what follows tokens that nobody knows yet.
        """
        if async_scheduling and max_draft_tokens:
            raise ValueError("guesses need the tokens before them: with guesses, steps cannot be launched ahead")
        self.scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            encoder_bytes_per_token=encoder_bytes_per_token,
            encoder_cache_bytes=encoder_cache_bytes,
            prefix_caching=prefix_caching,
            max_decode_slowdown=max_decode_slowdown,
            max_draft_tokens=max_draft_tokens,
        )
        self._runner = runner
        self._clock = clock
        self._max_model_len = max_model_len
        self._max_waiting = max_waiting
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._hidden_size = hidden_size
        self._num_submitted = 0
        self._sequences: dict[str, Sequence] = {}  # request id → its sequence, of all in flight
        self._compiling = CompilingQueue(compile_grammar)  # what the scheduler does not have yet
        self._pending: list[TokenEvent] = []  # what the next step delivers beside its own events
        self._overlap = async_scheduling
        self._prepare = prepare
        self._ahead: _Launched | None = None  # the step whose results are waited for next
        self._corrected = frozenset[int]()  # sequences that it computes from a token which they did not say
        self._last_done_at = 0.0

    @property
    def has_work(self) -> bool:
        """A step would compute or deliver something."""
        return self._is_busy or bool(self._compiling)

    @property
    def _is_busy(self) -> bool:
        return bool(self._pending) or self._ahead is not None or self.scheduler.has_work

    @property
    def _num_waiting(self) -> int:
        return self.scheduler.num_waiting + len(self._compiling)

    def submit(self, request: Generate) -> None:
        """Takes a request. One that is refused ends with an ERROR event of the next step."""
        try:
            self._check_accepted(request.request_id)
            sequence = make_sequence(
                self._num_submitted,
                request,
                max_model_len=self._max_model_len,
                vocab_size=self._vocab_size,
                hidden_size=self._hidden_size,
                eos_token_ids=self._eos_token_ids,
            )
        except EngineError as error:
            self._pending.append(_error_event(request.request_id, error))
            return
        self._num_submitted += 1
        self._sequences[request.request_id] = sequence
        if not self._compiling.add(sequence):
            self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Ends a request and frees what it holds; the next step delivers its CANCELLED event. Ignores unknown ids."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._compiling.remove(sequence)
            self.scheduler.remove(sequence)
            self._pending.append(_last_event(sequence, FinishReason.CANCELLED))

    def step(self) -> Step:
        """Plans a step, executes it and accounts for it; one that was launched ahead is only waited for."""
        for sequence in self._compiling.compiled(may_wait=not self._is_busy):
            self.scheduler.add(sequence)
        events, self._pending = self._pending, []
        step = self._launch() if self._ahead is None else self._less_what_is_void(self._ahead)
        self._ahead = self._launch_ahead(step)
        try:
            result = step.pending.result()
            samples = _new_tokens(step.scheduled.plan, result)
        except Exception as error:
            _logger.exception("a step of %d sequences failed", len(step.scheduled.sequences))
            events += self._fail(step, error)
            return Step(events=events, stats=self._stats(_NOTHING, 0, self._seconds_of(step)))
        step_seconds = self._seconds_of(step)
        answers = self._complete(step, samples, result, step_seconds)
        num_generated = sum(map(len, samples.values()))
        num_accepted_tokens = num_generated - len(answers)
        return Step(
            events=events + answers, stats=self._stats(step.scheduled, num_generated, step_seconds, num_accepted_tokens)
        )

    def prepare(self) -> bool:
        """Does a piece of what makes later steps faster, while there is no work; False if nothing of it is left."""
        return self._prepare()

    def shutdown(self) -> Step:
        """Ends whatever is in flight as cancelled; a step under way is waited for."""
        for request_id in tuple(self._sequences):
            self.cancel(request_id)
        if self._ahead is not None:
            ahead, self._ahead = self._less_what_is_void(self._ahead), None
            if not _waited_for(ahead):
                self.scheduler.fail(ahead.scheduled, blamed=())
        events, self._pending = self._pending, []
        return Step(events=events, stats=self._stats(_NOTHING, num_generated=0, step_seconds=0.0))

    def _check_accepted(self, request_id: str) -> None:
        if request_id in self._sequences:
            raise EngineError(EngineErrorCode.INTERNAL, f"the request id {request_id!r} is in flight already")
        if self._num_waiting >= self._max_waiting:
            raise EngineError(
                EngineErrorCode.OVERLOADED, f"{self._max_waiting} requests are waiting already; try again later"
            )

    def _launch(self) -> _Launched:
        started_at = self._clock()
        scheduled = self.scheduler.plan()
        try:
            pending = (
                CompletedStep(StepResult()) if scheduled.plan == StepPlan() else self._runner.launch(scheduled.plan)
            )
        except Exception as error:  # raised again where results are waited for
            pending = _Broken(error=error)
        return _Launched(scheduled=scheduled, pending=pending, started_at=started_at)

    def _launch_ahead(self, step: _Launched) -> _Launched | None:
        """Plans and launches the step after one that is under way, if that can be foreseen and there is one."""
        if not self._overlap or not step.is_foreseeable:
            return None
        self.scheduler.complete(step.scheduled)
        for sequence, chunk in zip(step.scheduled.sequences, step.scheduled.plan.chunks, strict=True):
            if chunk.samples:
                sequence.append_pending_token()
        step.is_completed = True
        ahead = self._launch()
        return None if ahead.scheduled == _NOTHING else ahead

    def _less_what_is_void(self, ahead: _Launched) -> _Launched:
        """A step that was launched ahead without the sequences that are gone or said another token than it took."""
        wanted = [
            self._sequences.get(sequence.request_id) is sequence and sequence.sequence_id not in self._corrected
            for sequence in ahead.scheduled.sequences
        ]
        if not all(wanted):
            ahead.scheduled = ahead.scheduled.keeping(wanted)
        return ahead

    def _seconds_of(self, step: _Launched) -> float:
        """How long a step took that has just ended; one launched ahead began when the one before it ended."""
        started_at, self._last_done_at = max(step.started_at, self._last_done_at), self._clock()
        return self._last_done_at - started_at

    def _complete(
        self, step: _Launched, samples: dict[int, list[Sample]], result: StepResult, step_seconds: float
    ) -> list[TokenEvent]:
        sampled = [sequence for sequence in step.scheduled.sequences if sequence.sequence_id in samples]
        if not step.is_completed:
            for sequence in sampled:
                sequence.token_ids += (sample.token_id for sample in samples[sequence.sequence_id][:-1])
            self.scheduler.complete(step.scheduled)
        self.scheduler.observe(step.scheduled, step_seconds)
        self._corrected = result.mispredicted & samples.keys()  # of the others this step is void, not the next
        return [
            self._give_up(sequence, result.failed[sequence.sequence_id])
            if sequence.sequence_id in result.failed
            else self._answer(sequence, samples[sequence.sequence_id])
            for sequence in sampled
        ]

    def _give_up(self, sequence: Sequence, message: str) -> TokenEvent:
        """Ends a sequence that cannot go on."""
        self._end(sequence)
        return _error_event(sequence.request_id, EngineError(EngineErrorCode.UNSUPPORTED, message), sequence)

    def _answer(self, sequence: Sequence, samples: Many[Sample]) -> TokenEvent:
        """Appends the token beyond a sequence's guesses, and ends the sequence if that is due."""
        sequence.append_token(samples[-1].token_id)
        is_first = sequence.num_generated == len(samples)
        finish = self._finish_reason(sequence)
        if finish is not None:
            self._end(sequence)
        return TokenEvent(
            request_id=sequence.request_id,
            token_ids=[sample.token_id for sample in samples],
            logprobs=[
                TokenLogprobs(logprob=sample.logprob, top=list(sample.top))
                for sample in samples
                if sample.logprob is not None
            ],
            num_cached_tokens=sequence.num_cached_tokens if finish or is_first else 0,
            num_encoded_media=len(sequence.encoded_keys) if is_first else 0,
            finish=finish,
        )

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        # `min_tokens` come before the one that ends; the sampler sees to it, this does not rely on it. But the end of a
        # grammar may come before.
        min_tokens = sequence.sampling.min_tokens if sequence.sampling.grammar is None else 0
        if sequence.token_ids[-1] in sequence.end_token_ids and sequence.num_generated > min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.is_complete else None

    def _fail(self, step: _Launched, error: Exception) -> list[TokenEvent]:
        """Ends the sequences that are to blame for it that a step failed; the others are computed once more."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            _waited_for(ahead)
        if step.is_completed:
            self.scheduler.revoke(step.scheduled, _NOTHING if ahead is None else ahead.scheduled)
        blamed, failure = self._to_blame(step.scheduled, error)
        self.scheduler.fail(step.scheduled, blamed)
        for sequence in blamed:
            del self._sequences[sequence.request_id]
        return [_error_event(sequence.request_id, failure, sequence) for sequence in blamed]

    def _to_blame(self, scheduled: Scheduled, error: Exception) -> tuple[Collection[Sequence], EngineError]:
        largest = self.scheduler.to_blame(scheduled)
        if isinstance(error, OutOfDeviceMemoryError) and largest is not None:
            message = "the device's memory did not suffice for this request beside the others; try again, or with less"
            return (largest,), EngineError(EngineErrorCode.OUT_OF_MEMORY, message)
        message = "the engine failed while it computed this request"
        return scheduled.sequences, EngineError(EngineErrorCode.INTERNAL, message)

    def _end(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self.scheduler.remove(sequence)

    def _stats(
        self, scheduled: Scheduled, num_generated: int, step_seconds: float, num_accepted_tokens: int = 0
    ) -> StepStats:
        return StepStats(
            num_running=self.scheduler.num_running,
            num_waiting=self._num_waiting,
            num_used_blocks=self.scheduler.block_pool.num_used,
            num_prompt_tokens=sum(
                max(0, min(chunk.start + len(chunk.token_ids), sequence.num_prompt_tokens) - chunk.start)
                for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True)
            ),
            num_generated_tokens=num_generated,
            num_cached_tokens=scheduled.num_cached_tokens,
            num_encoded_media=len(scheduled.plan.encode),
            num_preemptions=scheduled.num_preemptions,
            step_seconds=step_seconds,
            num_draft_tokens=sum(chunk.num_draft_tokens for chunk in scheduled.plan.chunks),
            num_accepted_tokens=num_accepted_tokens,
        )


def _waited_for(step: _Launched) -> bool:
    """Waits for a step that nobody needs any more; False if it failed."""
    try:
        step.pending.result()
    except Exception:
        _logger.exception("a step failed that was not needed any more")
        return False
    return True


def _new_tokens(plan: StepPlan, result: StepResult) -> dict[int, list[Sample]]:
    """The new tokens of a plan's sequences, exactly of those whose chunks sample."""
    return {
        chunk.sequence_id: [*result.accepted.get(chunk.sequence_id, ()), result.samples[chunk.sequence_id]]
        for chunk in plan.chunks
        if chunk.samples
    }


def _last_event(sequence: Sequence, finish: FinishReason) -> TokenEvent:
    return TokenEvent(request_id=sequence.request_id, num_cached_tokens=sequence.num_cached_tokens, finish=finish)


def _error_event(request_id: str, error: EngineError, sequence: Sequence | None = None) -> TokenEvent:
    return TokenEvent(
        request_id=request_id,
        num_cached_tokens=sequence.num_cached_tokens if sequence is not None else 0,
        finish=FinishReason.ERROR,
        error=error.code,
        message=error.message,
    )
