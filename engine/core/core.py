"""The engine's requests, from submission to their last event.

The core checks requests, hands their sequences to the scheduler, lets the step pipeline execute steps, and turns what a
step brought into events. Whatever happens to a request, exactly one of its events has `finish` set, and all that it
held is freed. The caller submits and cancels between steps.

A request with a grammar is scheduled once the grammar is compiled, which happens in the background: it usually takes
milliseconds, but some grammars take a second, and no other request waits for them. One whose grammar has a trigger is
scheduled at once.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from glimpse.engine.core.adapter_table import AdapterTable
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.plan import Sample, StepResult
from glimpse.engine.core.request import ModelSpec, make_request
from glimpse.engine.core.scheduler import Scheduler
from glimpse.engine.core.sequence import Sequence, TriggerWatcher
from glimpse.engine.core.step_pipeline import Runner, StepOutcome, StepPipeline
from glimpse.engine.errors import EngineError, EngineErrorCode, overloaded
from glimpse.engine.protocol.messages import (
    NO_STATS,
    Embed,
    FinishReason,
    Generate,
    LoadAdapter,
    LoadedAdapter,
    Step,
    StepStats,
    TokenEvent,
    TokenLogprobs,
    UnloadAdapter,
    error_event,
)
from glimpse.engine.protocol.sampling_params import Grammar

_WAIT_SECONDS = 0.01
"""How long a step with nothing else to do waits for a grammar. New messages from the caller wait as long."""


class GrammarQueue:
    """Sequences that the scheduler does not have yet because their grammars are being compiled."""

    def __init__(self, compile_grammar: Callable[[Grammar], Future[Any]] | None) -> None:
        """`compile_grammar` starts to compile. If it is None, grammars are compiled where they are used."""
        self._compile = compile_grammar
        self._entries: dict[Sequence, Future[Any]] = {}
        # Grammars of sequences that have not ended: else many grammars at once would be compiled again.
        self._held: dict[Sequence, Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence) -> bool:
        """Takes a sequence whose grammar must be compiled first; returns False for any other.

        A grammar with a trigger is compiled while the sequence runs: most answers do not trigger it.
        """
        grammar = sequence.request.sampling.grammar
        if grammar is None or self._compile is None:
            return False
        compiling = self._held[sequence] = self._compile(grammar)
        if compiling.done() or grammar.trigger is not None:
            return False
        self._entries[sequence] = compiling
        return True

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that has ended if it is in the queue, and lets its grammar go."""
        self._held.pop(sequence, None)
        self._entries.pop(sequence, None)

    def pop_compiled(self, *, may_wait: bool) -> list[Sequence]:
        """Removes and returns the sequences whose compilation has ended, also in failure.

        Args:
            may_wait: There is nothing else to do: wait a moment for a grammar.
        """
        if self._entries and may_wait:
            wait(self._entries.values(), timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        ready = [sequence for sequence, compiling in self._entries.items() if compiling.done()]
        for sequence in ready:
            del self._entries[sequence]
        return ready


class Core:
    """All requests in flight."""

    def __init__(
        self,
        *,
        runner: Runner,
        model: ModelSpec,
        limits: SchedulerLimits,
        max_waiting: int,
        adapters: AdapterTable | None = None,
        async_scheduling: bool = False,
        prepare: Callable[[], bool] = lambda: False,
        compile_grammar: Callable[[Grammar], Future[Any]] | None = None,
        watch_trigger: Callable[[Grammar], TriggerWatcher] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            max_waiting: Requests beyond this number of waiting ones are refused as OVERLOADED.
            adapters: Table whose digests `model` has. None: none are loaded or unloaded.
            async_scheduling: Steps are launched before the previous one has finished.
            prepare: Called by the method of this name.
            compile_grammar: Starts to compile a grammar, unless that has been done. Only its completion matters here.
            watch_trigger: Waits for the trigger of a grammar that has one. Without it, such grammars constrain nothing.
            clock: Seconds, from any origin.

        Raises:
            ValueError: async scheduling is combined with draft tokens, which are proposed from tokens that it does not
                know yet.
        """
        if async_scheduling and limits.max_draft_tokens:
            raise ValueError("async_scheduling: expected False with max_draft_tokens > 0, got True")
        self.scheduler = Scheduler(limits)
        self._pipeline = StepPipeline(
            runner=runner, scheduler=self.scheduler, async_scheduling=async_scheduling, clock=clock
        )
        self._clock = clock
        self._model = model
        self._max_model_len = limits.max_model_len
        self._max_waiting = max_waiting
        self._adapters = adapters
        self._prepare = prepare
        self._num_submitted = 0
        self._sequences: dict[str, Sequence] = {}  # request id → sequence
        self._watch_trigger = watch_trigger
        self._compiling = GrammarQueue(compile_grammar)  # sequences that the scheduler does not have yet
        self._events: list[TokenEvent] = []  # delivered with those of the next step
        self._probes: list[Sequence] = []  # answered after the next step, by what is left then

    @property
    def has_work(self) -> bool:
        """A step would compute or deliver something."""
        return self._is_busy or bool(self._compiling) or (self._adapters is not None and self._adapters.is_loading)

    @property
    def _is_busy(self) -> bool:
        return bool(self._events or self._probes) or self._pipeline.has_step_in_flight or self.scheduler.has_work

    @property
    def _num_waiting(self) -> int:
        return self.scheduler.num_waiting + len(self._compiling)

    def submit(self, request: Generate | Embed) -> None:
        """Accepts a request, or refuses it with an ERROR event in the next step."""
        try:
            if not request.is_probe:
                self._check_accepted(request.request_id)
            sequence = self._make_sequence(request)
        except EngineError as error:
            self._events.append(error_event(request.request_id, error))
            return
        if request.is_probe:
            self._probes.append(sequence)
            return
        self._num_submitted += 1
        self._sequences[request.request_id] = sequence
        if not self._compiling.add(sequence):
            self.scheduler.add(sequence)

    def check(self, request: Generate | Embed) -> None:
        """Checks a request without submitting it.

        Raises:
            EngineError: `submit` would refuse the request, even if the queue were empty.
        """
        self._make_sequence(request)

    def cancel(self, request_id: str) -> None:
        """Ends a request and frees what it holds. The next step delivers its CANCELLED event. Ignores unknown ids."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._end(sequence)
            stats, finish = sequence.current_stats, FinishReason.CANCELLED
            self._events.append(TokenEvent(request_id=request_id, stats=stats, finish=finish))

    def change_adapters(self, request: LoadAdapter | UnloadAdapter) -> None:
        """Begins to load an adapter, or unloads one."""
        assert self._adapters is not None
        if isinstance(request, LoadAdapter):
            self._adapters.load(request)
        else:
            self._events.append(self._adapters.unload(request))

    def step(self) -> Step:
        """Executes a step and returns what it brought, together with the events that were due before it."""
        for sequence in self._compiling.pop_compiled(may_wait=not self._is_busy):
            self.scheduler.add(sequence)
        events, self._events = self._events, []
        if self._adapters is not None and self._adapters.is_loading:
            events += self._adapters.advance(may_wait=not self._is_busy and not events)
        step = self._pipeline.step()
        events += [self._failure(*failed) for failed in step.failed]
        events += [self._event(sequence, samples, step.result) for sequence, samples in step.sampled]
        events += [self._event(sequence, (), step.result) for sequence in step.embedded]
        events += self._answer_probes()
        return Step(events=events, stats=self._stats(step), adapters=self._changed_adapters())

    def prepare(self) -> bool:
        """Does a piece of work that makes later steps faster, while there are no requests; False if none is left."""
        return self._prepare()

    def shutdown(self) -> Step:
        """Ends all requests as cancelled. Waits for the step in flight."""
        for request_id in tuple(self._sequences):
            self.cancel(request_id)
        self._pipeline.drain()
        events, self._events = self._events, []
        events += self._answer_probes()
        events += [] if self._adapters is None else self._adapters.end_all()
        return Step(events=events, stats=self._stats(StepOutcome(seconds=0.0)))

    def _changed_adapters(self) -> dict[str, LoadedAdapter] | None:
        """Frees adapters that nobody has any more. Returns all if they have changed."""
        adapters = self._adapters
        if adapters is None:
            return None
        if adapters.is_leaving:
            adapters.release({each.request.adapter for each in self._sequences.values()})
        has_changed, adapters.has_changed = adapters.has_changed, False
        return dict(adapters.loaded) if has_changed else None

    def _answer_probes(self) -> list[TokenEvent]:
        probes, self._probes = self._probes, []
        for sequence in probes:
            self.scheduler.probe(sequence)
        return [
            TokenEvent(request_id=each.request.request_id, stats=each.current_stats, finish=FinishReason.STOP)
            for each in probes
        ]

    def _make_sequence(self, request: Generate | Embed) -> Sequence:
        checked = make_request(request, max_model_len=self._max_model_len, model=self._model)
        grammar, trigger = checked.sampling.grammar, None
        if grammar is not None and grammar.trigger is not None and self._watch_trigger is not None:
            trigger = self._watch_trigger(grammar)
        return Sequence(sequence_id=self._num_submitted, request=checked, trigger=trigger, arrived=self._clock())

    def _check_accepted(self, request_id: str) -> None:
        if request_id in self._sequences:
            raise EngineError(EngineErrorCode.INTERNAL, f"the request id {request_id!r} is already in use")
        if self._num_waiting >= self._max_waiting:
            why = f"the queue is full: {self._max_waiting} requests are waiting"
            raise overloaded(why, self.scheduler.expected_wait().place_seconds)

    def _failure(self, sequence: Sequence, error: EngineError) -> TokenEvent:
        """Ends a sequence that has failed, and returns its event."""
        self._end(sequence)
        return error_event(sequence.request.request_id, error, sequence.current_stats)

    def _event(self, sequence: Sequence, samples: Many[Sample], result: StepResult) -> TokenEvent:
        """The event of a sequence that a step gave tokens, or an embedding if there are none.

        Ends the sequence if it has failed or finished.
        """
        if result.failed and (message := result.failed.get(sequence.sequence_id)) is not None:
            return self._failure(sequence, EngineError(EngineErrorCode.UNSUPPORTED, message))
        is_first = sequence.num_generated == len(samples)
        if is_first:
            sequence.mark_first_token(self._clock())
        finish = _finish_reason(sequence) if samples else FinishReason.STOP
        if finish is None and not is_first and samples[0].logprob is None:  # nearly always
            return TokenEvent(request_id=sequence.request.request_id, token_ids=[sample.token_id for sample in samples])
        if finish is not None:
            self._end(sequence)
        return TokenEvent(
            request_id=sequence.request.request_id,
            token_ids=[sample.token_id for sample in samples],
            logprobs=[
                TokenLogprobs(logprob=sample.logprob, top=list(sample.top))
                for sample in samples
                if sample.logprob is not None
            ],
            prompt_logprobs=result.prompt_logprobs.get(sequence.sequence_id, []) if is_first else [],
            stats=sequence.current_stats if finish or is_first else NO_STATS,
            embedding=b"" if samples else result.embeddings[sequence.sequence_id],
            finish=finish,
        )

    def _end(self, sequence: Sequence) -> None:
        self._compiling.remove(sequence)
        del self._sequences[sequence.request.request_id]
        self.scheduler.remove(sequence)

    def _stats(self, step: StepOutcome) -> StepStats:
        scheduled, wait = step.scheduled, self.scheduler.expected_wait()
        return StepStats(
            num_running=self.scheduler.num_running,
            num_waiting=self._num_waiting,
            num_used_blocks=self.scheduler.state.num_used_blocks,
            num_prompt_tokens=sum(
                max(0, min(chunk.start + len(chunk.token_ids), sequence.request.num_prompt_tokens) - chunk.start)
                for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True)
                if chunk.start < sequence.request.num_prompt_tokens
            ),
            num_generated_tokens=step.num_generated_tokens,
            num_cached_tokens=scheduled.num_cached_tokens,
            num_encoded_media=len(scheduled.plan.encode),
            num_preemptions=scheduled.num_preemptions,
            step_seconds=step.seconds,
            num_draft_tokens=scheduled.num_draft_tokens,
            num_accepted_tokens=step.num_accepted_tokens,
            num_admitted_tokens=scheduled.num_admitted_tokens,
            answer_tokens=self.scheduler.answer_tokens,
            place_seconds=wait.place_seconds,
            waiting_token_seconds=wait.token_seconds,
        )


def _finish_reason(sequence: Sequence) -> FinishReason | None:
    if sequence.token_ids[-1] in sequence.end_token_ids:
        # The sampler bans end tokens before `min_tokens`; the core does not rely on it. A grammar may end earlier.
        min_tokens = 0 if sequence.is_constrained else sequence.request.sampling.min_tokens
        if sequence.num_generated > min_tokens:
            return FinishReason.STOP
    return FinishReason.LENGTH if sequence.is_complete else None
