"""Decides what each step computes: which sequences run, how many tokens of each, in which blocks, and who is preempted.

Clients share the engine fairly, and so do the requests of a client: `fair_queue` has the order of admission,
`preemption` who gives way. With a single client and one completion per request, sequences are served by priority key
(priority, then arrival), smallest first. A `StepPlanner` plans a step; the scheduler follows it until it is computed or
has failed.

Plain bookkeeping: no model, no tensors, no clock.
"""

from dataclasses import asdict

from msgspec.structs import replace

from glimpse.engine.core.forecast import NO_WAIT, ExpectedWait, StepCosts, forecast, foresee_wait
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.scheduler_state import SchedulerState
from glimpse.engine.core.sequence import RUNNING, Sequence
from glimpse.engine.core.step_planner import ScheduledStep, StepPlanner
from glimpse.engine.protocol.messages import BACKGROUND_PRIORITY

_FORESEE_SECONDS = 0.25
"""How often the time of what waits is foreseen, which takes a millisecond or two."""


class Scheduler:
    """The sequences between their arrival and their end, and the steps that compute them."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.state = SchedulerState(limits)
        self._limits = limits
        self._costs = StepCosts()
        self._expected_wait = NO_WAIT
        self._unforeseen_seconds = _FORESEE_SECONDS  # of steps since it was computed
        self._ended: dict[int, None] = {}  # ids of sequences that the next plan makes the runner forget

    @property
    def num_waiting(self) -> int:
        return self.state.queue.num_waiting

    @property
    def num_running(self) -> int:
        return len(self.state.running)

    @property
    def answer_tokens(self) -> float:
        """Mean tokens of recent answers."""
        return self._costs.answer_tokens

    def expected_wait(self) -> ExpectedWait:
        """Returns how long what waits takes, as it was a moment ago."""
        if not self.num_waiting:
            return NO_WAIT
        if self._unforeseen_seconds >= _FORESEE_SECONDS:
            self._unforeseen_seconds = 0.0
            self._expected_wait = foresee_wait(self.state, self._limits, self._costs)
        return self._expected_wait

    @property
    def has_work(self) -> bool:
        """The next plan would not be empty."""
        return bool(self.num_waiting or self.state.running or self._ended or self.state.encoder_cache.has_evictions)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self.state.add(sequence)

    def probe(self, sequence: Sequence) -> None:
        """Sets the statistics that a sequence would have with its first token if it arrived now. It is not queued."""
        prefixes, outputs = self.state.prefix_cache, self.state.encoder_cache
        num_cached_tokens = len(prefixes.match(sequence)) * self._limits.block_size
        foreseen = forecast(sequence, self.state, self._limits, self._costs)
        prefixes.forget(sequence)
        times = {} if foreseen is None else asdict(foreseen)
        sequence.stats = replace(sequence.stats, num_cached_tokens=num_cached_tokens, **times)
        sequence.encoded_keys = {
            span.key
            for span in sequence.request.spans
            if any(span.rows_between(num_cached_tokens, span.end)) and not outputs.holds(span.key)
        }

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence in any state and frees all that it holds. The next plan makes the runner forget it."""
        if sequence.num_generated and sequence.request.priority < BACKGROUND_PRIORITY:
            self._costs.observe_answer(sequence.num_generated)
        self.state.remove(sequence)
        self.restart_in_runner(sequence)

    def restart_in_runner(self, sequence: Sequence) -> None:
        """Makes the runner forget a sequence. With its next chunk it is told the sequence as it is then."""
        if sequence in self.state.in_runner:
            self.state.in_runner.remove(sequence)
            self._ended[sequence.sequence_id] = None

    def schedule(self) -> ScheduledStep:
        """Plans the next step.

        Call `complete` or `fail` before the next call. Plans are executed in order, so a block that is free here may
        still be written by a step in flight for a sequence that has ended: its new owner writes it later.
        """
        ended, self._ended = tuple(self._ended), {}
        return StepPlanner(self._limits, self.state).plan(ended=ended)

    def complete(self, scheduled: ScheduledStep) -> None:
        """Counts the tokens of a step as computed; a step in flight is computed before any step planned from now on.

        Registers the blocks that the step fills. The sequences must have their accepted draft tokens by now, but not
        the tokens sampled after them.
        """
        block_size = self._limits.block_size
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True):
            # The sequence has the accepted draft tokens; the KV of the others is overwritten later.
            start, end = chunk.start, min(chunk.start + len(chunk.token_ids), len(sequence.token_ids))
            sequence.num_computed_tokens = end
            if start // block_size < end // block_size:
                self.state.prefix_cache.register_blocks(
                    sequence, chunk.block_table, start, sliding_table=chunk.sliding_table
                )
            if self.state.states is not None:
                known_end = chunk.start + len(chunk.token_ids) - chunk.num_draft_tokens
                self.state.states.complete(sequence, max(end - known_end, 0))
            if start < sequence.request.num_prompt_tokens:
                self.state.encoder_cache.advance(sequence, first_token=start)

    def observe(self, scheduled: ScheduledStep, seconds: float, encode_seconds: float = 0.0) -> None:
        """Records how long a step took, and its encoder."""
        self.state.decode_turns.count_seconds(seconds)
        self._unforeseen_seconds += seconds
        # Without samples a runner need not wait until its device has computed the step.
        if any(chunk.samples for chunk in scheduled.plan.chunks):
            self._costs.observe(scheduled, seconds, encode_seconds)
            work = scheduled.work
            self.state.decode_turns.observe(work, seconds)
            self.state.prefill_budget.observe(work, seconds, encode_seconds)
            if not work.num_prompt_tokens + work.num_media_tokens:
                num_decodes, num_draft_tokens = len(scheduled.sequences), scheduled.num_draft_tokens
                self.state.draft_budget.observe(
                    num_decodes=num_decodes, num_draft_tokens=num_draft_tokens, seconds=seconds
                )

    def discard(self, sequence: Sequence) -> None:
        """Takes a launched step back for one of its sequences. Its KV is overwritten later; a state cannot be."""
        if self.state.states is not None and sequence.status is RUNNING:
            self.state.preempt(sequence)

    def fail(self, scheduled: ScheduledStep) -> None:
        """Takes a failed step back. Its sequences are restarted in the runner and compute the same tokens again."""
        # If forgetting was all that the step had to do and that failed, repeating it would never end.
        work = scheduled.work
        self._undo(scheduled, forget_again=bool(work.num_decodes or work.num_prompt_tokens))

    def roll_back(self, scheduled: ScheduledStep, ahead: ScheduledStep) -> None:
        """Takes `complete` back for a step that failed afterwards, and the step planned since. Call `fail` next.

        The sequences of both steps wait again: their blocks may contain nothing, and some may be shared.
        """
        for chunk in scheduled.plan.chunks:
            end = chunk.start + len(chunk.token_ids)
            self.state.prefix_cache.evict_blocks(chunk.block_table, chunk.start, end, sliding_table=chunk.sliding_table)
        for sequence in (*scheduled.sequences, *ahead.sequences):
            sequence.drop_pending_token()
            if sequence.status is RUNNING:
                self.state.preempt(sequence)
        if self.state.states is not None:
            self.state.states.evict(chunk.states for chunk in scheduled.plan.chunks)
        self._undo(ahead, forget_again=True)

    def _undo(self, scheduled: ScheduledStep, *, forget_again: bool) -> None:
        for sequence in scheduled.sequences:
            self._restart(sequence)
        plan = scheduled.plan
        if forget_again:
            self._ended |= dict.fromkeys(plan.ended)
            self.state.encoder_cache.fail(encoded=(item.key for item in plan.encode), evicted=plan.evicted)

    def _restart(self, sequence: Sequence) -> None:
        # The runner forgets the hidden states of its earlier chunks, or a part of its layers' states is overwritten.
        if sequence.status is RUNNING and (sequence.request.needs_all_states or self.state.states is not None):
            self.state.preempt(sequence)
        self.state.encoder_cache.release(sequence)
        self.restart_in_runner(sequence)
