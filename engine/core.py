"""The engine's loop body: takes requests, plans a step, has it executed, and says what it brought to whom.

Whatever happens to a request, exactly one of its events bears `finish`, and nothing of it stays behind. The caller
submits and cancels between steps. Knows no model and no transport.
"""

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from typing import Protocol

from engine.errors import EngineError, EngineErrorCode
from engine.pace import StepWork
from engine.plan import Sample, StepPlan, StepResult
from engine.protocol import FinishReason, Generate, Step, StepStats, TokenEvent, TokenLogprobs
from engine.scheduler import Scheduled, Scheduler
from engine.sequence import Sequence, make_sequence

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

    def execute(self, plan: StepPlan) -> StepResult:
        """Carries a plan out, in the order that StepPlan gives.

        If it raises, the sequences of the plan are ended, and the next plan repeats its `ended` and `evicted` and
        evicts what it should have encoded: there the runner ignores names that it does not know.
        """
        ...


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
        max_guesses: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Raises:
            ValueError: the blocks do not hold a sequence that fills the context window, or a step is allowed nothing.
        """
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
            max_guesses=max_guesses,
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
        self._pending: list[TokenEvent] = []  # what the next step delivers beside its own events

    @property
    def has_work(self) -> bool:
        """A step would compute or deliver something."""
        return bool(self._pending) or self.scheduler.has_work

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
        self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Ends a request and frees what it holds; the next step delivers its CANCELLED event. Ignores unknown ids."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self.scheduler.remove(sequence)
            self._pending.append(_last_event(sequence, FinishReason.CANCELLED))

    def step(self) -> Step:
        """Plans a step, executes it and accounts for it."""
        started_at = self._clock()
        events, self._pending = self._pending, []
        scheduled = self.scheduler.plan()
        try:
            result = self._execute(scheduled.plan)
            samples = _new_tokens(scheduled.plan, result)
        except Exception:
            _logger.exception("a step of %d sequences failed", len(scheduled.sequences))
            events += self._fail(scheduled)
            return Step(events=events, stats=self._stats(_NOTHING, 0, self._clock() - started_at))
        step_seconds = self._clock() - started_at
        answers = self._complete(scheduled, samples, result.failed, step_seconds)
        num_generated = sum(map(len, samples.values()))
        num_true_guesses = num_generated - len(answers)
        return Step(
            events=events + answers, stats=self._stats(scheduled, num_generated, step_seconds, num_true_guesses)
        )

    def shutdown(self) -> Step:
        """Ends whatever is in flight as cancelled, without the runner."""
        for request_id in tuple(self._sequences):
            self.cancel(request_id)
        events, self._pending = self._pending, []
        return Step(events=events, stats=self._stats(_NOTHING, num_generated=0, step_seconds=0.0))

    def _check_accepted(self, request_id: str) -> None:
        if request_id in self._sequences:
            raise EngineError(EngineErrorCode.INTERNAL, f"the request id {request_id!r} is in flight already")
        if self.scheduler.num_waiting >= self._max_waiting:
            raise EngineError(
                EngineErrorCode.OVERLOADED, f"{self._max_waiting} requests are waiting already; try again later"
            )

    def _execute(self, plan: StepPlan) -> StepResult:
        return StepResult() if plan == StepPlan() else self._runner.execute(plan)

    def _complete(
        self,
        scheduled: Scheduled,
        samples: Mapping[int, list[Sample]],
        failed: Mapping[int, str],
        step_seconds: float,
    ) -> list[TokenEvent]:
        sampled = [sequence for sequence in scheduled.sequences if sequence.sequence_id in samples]
        for sequence in sampled:
            sequence.token_ids += (sample.token_id for sample in samples[sequence.sequence_id][:-1])
        self.scheduler.complete(scheduled, seconds=step_seconds)
        return [
            self._give_up(sequence, failed[sequence.sequence_id])
            if sequence.sequence_id in failed
            else self._answer(sequence, samples[sequence.sequence_id])
            for sequence in sampled
        ]

    def _give_up(self, sequence: Sequence, message: str) -> TokenEvent:
        """Ends a sequence that cannot go on."""
        self._end(sequence)
        return _error_event(sequence.request_id, EngineError(EngineErrorCode.UNSUPPORTED, message), sequence)

    def _answer(self, sequence: Sequence, samples: Many[Sample]) -> TokenEvent:
        """Appends the token beyond a sequence's guesses, and ends the sequence if that is due."""
        is_first = sequence.num_generated < len(samples)
        sequence.token_ids.append(samples[-1].token_id)
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
            finish=finish,
        )

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        # `min_tokens` come before the one that ends; the sampler sees to it, this does not rely on it. But the end of a
        # grammar may come before.
        min_tokens = sequence.sampling.min_tokens if sequence.sampling.grammar is None else 0
        if sequence.token_ids[-1] in sequence.end_token_ids and sequence.num_generated > min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.num_generated >= sequence.max_tokens else None

    def _fail(self, scheduled: Scheduled) -> list[TokenEvent]:
        self.scheduler.fail(scheduled)
        for sequence in scheduled.sequences:
            del self._sequences[sequence.request_id]
        error = EngineError(EngineErrorCode.INTERNAL, "the engine failed while it computed this request")
        return [_error_event(sequence.request_id, error, sequence) for sequence in scheduled.sequences]

    def _end(self, sequence: Sequence) -> None:
        del self._sequences[sequence.request_id]
        self.scheduler.remove(sequence)

    def _stats(
        self, scheduled: Scheduled, num_generated: int, step_seconds: float, num_true_guesses: int = 0
    ) -> StepStats:
        return StepStats(
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
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
            num_guesses=sum(chunk.num_guesses for chunk in scheduled.plan.chunks),
            num_true_guesses=num_true_guesses,
        )


def _new_tokens(plan: StepPlan, result: StepResult) -> dict[int, list[Sample]]:
    """The new tokens of a plan's sequences, exactly of those whose chunks sample."""
    return {
        chunk.sequence_id: [*result.guessed.get(chunk.sequence_id, ()), result.samples[chunk.sequence_id]]
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
