"""Executes step after step. With async scheduling, each step is launched before the previous one has finished.

While the device computes step N, step N + 1 is planned and launched. All it needs is known by then except the sampled
token ids: the plan has PENDING_TOKEN_ID in their place, and the runner fills them in on the device. When step N has
finished, parts of step N + 1 may have to be discarded: sequences that step N ended, sequences for which the runner used
a token other than the sampled one (`StepResult.mispredicted`), and sequences whose grammar step N has triggered: step
N + 1 samples without it.

A step is not launched ahead if sampling in the current one needs the host (`Sequence.needs_host_sampling`) or verifies
draft tokens. Without async scheduling, no step is.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import NoReturn, Protocol, TypeAlias

from glimpse.engine.core.plan import CompletedStep, InFlightStep, Sample, StepPlan, StepResult
from glimpse.engine.core.scheduler import Scheduler
from glimpse.engine.core.sequence import ENDED, Sequence
from glimpse.engine.core.step_planner import EMPTY_STEP, ScheduledStep
from glimpse.engine.errors import EngineError, EngineErrorCode, OutOfDeviceMemoryError

_logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Executes plans."""

    def launch(self, plan: StepPlan) -> InFlightStep:
        """Starts to execute a plan, in the order that StepPlan states and after all plans launched before.

        If this call or the result raises, the whole step is void. The next plan repeats its `ended` and `evicted`,
        evicts what the failed step should have encoded, and ends or restarts its sequences. In that plan the runner
        ignores ids and keys that it does not know. OutOfDeviceMemoryError costs one sequence, any other error all of
        the step.
        """
        ...


Sampled: TypeAlias = tuple[Sequence, list[Sample]]
"""A sequence and its new tokens: the accepted draft tokens, and the one sampled after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """A step that has finished or failed."""

    seconds: float
    sampled: Many[Sampled] = ()
    """Sequences that have new tokens. Those in `result.failed` must end, and their tokens do not count."""
    embedded: Many[Sequence] = ()
    """Sequences that pool and whose prompt is computed."""
    result: StepResult = field(default_factory=StepResult)
    failed: Many[tuple[Sequence, EngineError]] = ()
    """Sequences that must end because the step failed."""
    scheduled: ScheduledStep = EMPTY_STEP
    """Empty if the step failed."""
    num_generated_tokens: int = 0
    num_accepted_tokens: int = 0
    """Draft tokens among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedLaunch:
    """A step that could not be launched. The error is raised where results are waited for."""

    error: Exception

    def result(self) -> NoReturn:
        raise self.error


@dataclass(slots=True, kw_only=True)
class _LaunchedStep:
    scheduled: ScheduledStep
    in_flight: InFlightStep
    started_at: float
    launch_seconds: float
    """Time of the host to plan and launch it."""
    is_completed: bool = False
    """The scheduler counts it as computed, and its sequences have pending tokens."""

    @property
    def allows_look_ahead(self) -> bool:
        """The next step can be planned without the results of this one."""
        pairs = zip(self.scheduled.sequences, self.scheduled.plan.chunks, strict=True)
        return not isinstance(self.in_flight, _FailedLaunch) and not any(
            chunk.samples and (sequence.needs_host_sampling or chunk.num_draft_tokens) for sequence, chunk in pairs
        )


class StepPipeline:
    """Plans, launches and completes steps; at most two are in flight."""

    def __init__(
        self, *, runner: Runner, scheduler: Scheduler, async_scheduling: bool, clock: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._async_scheduling = async_scheduling
        self._clock = clock
        self._ahead: _LaunchedStep | None = None  # launched, results not yet waited for
        self._mispredicted = frozenset[int]()  # sequences that `_ahead` samples from a wrong token or without grammar
        self._last_finished_at = 0.0

    @property
    def has_step_in_flight(self) -> bool:
        return self._ahead is not None

    def step(self) -> StepOutcome:
        """Launches a step, unless the last call did so already, and waits for its results."""
        step = self._launch() if self._ahead is None else self._without_discarded(self._ahead)
        self._ahead = self._launch_ahead(step)
        waits_since = self._clock()
        try:
            result = step.in_flight.result()
            sampled = _new_samples(step.scheduled, result)
            embedded = _new_embeddings(step.scheduled, result)
        except Exception as error:
            _logger.exception("a step of %d sequences failed", len(step.scheduled.sequences))
            failed = self._fail(step, error)
            return StepOutcome(failed=failed, seconds=self._seconds_of(step))
        seconds = self._seconds_of(step)
        # The time to launch the next step is that step's, although this one's results wait for it.
        own_seconds = step.launch_seconds + self._last_finished_at - waits_since
        if result.encode_seconds:
            encoded = {item.key for item in step.scheduled.plan.encode}
            for sequence in step.scheduled.sequences:
                sequence.count_encoding(encoded, result.encode_seconds)
        self._complete(step, sampled, result, own_seconds)
        num_generated_tokens = sum(len(own) for _, own in sampled)
        return StepOutcome(
            seconds=seconds,
            sampled=sampled,
            embedded=embedded,
            result=result,
            scheduled=step.scheduled,
            num_generated_tokens=num_generated_tokens,
            num_accepted_tokens=num_generated_tokens - len(sampled),
        )

    def drain(self) -> None:
        """Waits for the step in flight, if there is one, and discards its results."""
        if self._ahead is None:
            return
        ahead, self._ahead = self._without_discarded(self._ahead), None
        if not _finishes(ahead):
            self._scheduler.fail(ahead.scheduled)

    def _launch(self) -> _LaunchedStep:
        started_at = self._clock()
        scheduled = self._scheduler.schedule()
        if scheduled.plan.started:
            for sequence in scheduled.sequences:
                sequence.mark_scheduled(started_at)
        try:
            is_empty = scheduled.plan == StepPlan()
            in_flight = CompletedStep(StepResult()) if is_empty else self._runner.launch(scheduled.plan)
        except Exception as error:
            in_flight = _FailedLaunch(error=error)
        launch_seconds = self._clock() - started_at
        return _LaunchedStep(
            scheduled=scheduled, in_flight=in_flight, started_at=started_at, launch_seconds=launch_seconds
        )

    def _launch_ahead(self, step: _LaunchedStep) -> _LaunchedStep | None:
        """Launches the step after one that is in flight, if that is possible and there is work for it."""
        if not self._async_scheduling or not step.allows_look_ahead:
            return None
        self._scheduler.complete(step.scheduled)
        for sequence, chunk in zip(step.scheduled.sequences, step.scheduled.plan.chunks, strict=True):
            if chunk.samples:
                sequence.append_pending_token()
        step.is_completed = True
        ahead = self._launch()
        return None if ahead.scheduled == EMPTY_STEP else ahead

    def _without_discarded(self, ahead: _LaunchedStep) -> _LaunchedStep:
        """Drops the sequences that have ended since the launch and those that were mispredicted."""
        discarded = self._mispredicted
        wanted = [
            sequence.status is not ENDED and (not discarded or sequence.sequence_id not in discarded)
            for sequence in ahead.scheduled.sequences
        ]
        if not all(wanted):
            for sequence in compress(ahead.scheduled.sequences, map(not_, wanted)):
                self._scheduler.discard(sequence)
            ahead.scheduled = ahead.scheduled.keeping(wanted)
        return ahead

    def _seconds_of(self, step: _LaunchedStep) -> float:
        """Duration of a step that has just finished. One launched ahead began when the one before it finished."""
        started_at, self._last_finished_at = max(step.started_at, self._last_finished_at), self._clock()
        return self._last_finished_at - started_at

    def _is_hidden(self, step: _LaunchedStep) -> bool:
        """The step only decodes and may have ended unnoticed while the host launched one with prompt tokens."""
        return (
            self._ahead is not None
            and self._ahead.scheduled.work.num_prompt_tokens > 0
            and step.scheduled.work.num_prompt_tokens == 0
        )

    def _complete(self, step: _LaunchedStep, sampled: Many[Sampled], result: StepResult, seconds: float) -> None:
        """Gives each sequence its new tokens."""
        if not step.is_completed:
            for sequence, own in sampled:
                for sample in own[:-1]:
                    sequence.append_token(sample.token_id)
            self._scheduler.complete(step.scheduled)
        for sequence, own in sampled:
            sequence.append_token(own[-1].token_id)
            if sequence.sequence_id in result.proposed:
                self._scheduler.state.draft_budget.offer(sequence, result.proposed[sequence.sequence_id])
        if not self._is_hidden(step):
            self._scheduler.observe(step.scheduled, seconds, result.encode_seconds)
        # Sequences without a sample in this step were dropped from it: their misprediction does not affect `_ahead`.
        self._mispredicted = self._begin_grammars(sampled)
        if result.mispredicted:
            self._mispredicted |= result.mispredicted.intersection(sequence.sequence_id for sequence, _ in sampled)

    def _begin_grammars(self, sampled: Many[Sampled]) -> frozenset[int]:
        """Begins the grammars that the new tokens have triggered, and returns the ids of their sequences."""
        triggered = [
            sequence
            for sequence, own in sampled
            if sequence.trigger is not None and sequence.triggers_grammar(sample.token_id for sample in own)
        ]
        for sequence in triggered:
            self._scheduler.restart_in_runner(sequence)
        return frozenset(sequence.sequence_id for sequence in triggered)

    def _fail(self, step: _LaunchedStep, error: Exception) -> list[tuple[Sequence, EngineError]]:
        """Takes a failed step back, and the one launched after it. Sequences that do not end are computed again."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            _finishes(ahead)
        if step.is_completed:
            self._scheduler.roll_back(step.scheduled, EMPTY_STEP if ahead is None else ahead.scheduled)
        self._scheduler.fail(step.scheduled)
        return _failed_sequences(step.scheduled, error)


def _failed_sequences(scheduled: ScheduledStep, error: Exception) -> list[tuple[Sequence, EngineError]]:
    """The failure policy: running out of memory ends the last prompt or sequence of the step, other errors end all."""
    if isinstance(error, OutOfDeviceMemoryError) and scheduled.sequences:
        message = (
            "out of device memory: the request did not fit with the running ones; retry, or send a smaller request"
        )
        failure = EngineError(EngineErrorCode.OUT_OF_MEMORY, message)
        return [(_last_prompt_or_sequence(scheduled), failure)]
    failure = EngineError(EngineErrorCode.INTERNAL, "the engine failed while it computed this request")
    return [(sequence, failure) for sequence in scheduled.sequences]


def _last_prompt_or_sequence(scheduled: ScheduledStep) -> Sequence:
    pairs = zip(scheduled.sequences, scheduled.plan.chunks, strict=True)
    prompts = [sequence for sequence, chunk in pairs if len(chunk.token_ids) - chunk.num_draft_tokens > 1]
    return max(prompts or scheduled.sequences, key=lambda sequence: sequence.priority_key)


def _finishes(step: _LaunchedStep) -> bool:
    """Waits for a step whose results are discarded; False if it failed."""
    try:
        step.in_flight.result()
    except Exception:
        _logger.exception("a step failed whose results were already discarded")
        return False
    return True


def _new_embeddings(scheduled: ScheduledStep, result: StepResult) -> list[Sequence]:
    """Returns each sequence that pools and whose prompt the step completes.

    Raises:
        KeyError: the runner returned no embedding for one of them.
    """
    embedded = [
        sequence
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True)
        if sequence.request.pooling is not None
        and chunk.start + len(chunk.token_ids) == sequence.request.num_prompt_tokens
    ]
    if missing := {sequence.sequence_id for sequence in embedded} - result.embeddings.keys():
        raise KeyError(*missing)
    return embedded


def _new_samples(scheduled: ScheduledStep, result: StepResult) -> list[Sampled]:
    """Returns each sequence whose chunk samples, and its new tokens.

    Raises:
        KeyError: the runner sampled nothing for one of them.
    """
    samples, accepted = result.samples, result.accepted
    return [
        (sequence, [*accepted.get(chunk.sequence_id, ()), samples[chunk.sequence_id]])
        if accepted
        else (sequence, [samples[chunk.sequence_id]])
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True)
        if chunk.samples
    ]
