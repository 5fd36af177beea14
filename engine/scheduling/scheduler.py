"""Decides what each step computes: which sequences run, how many tokens of each, in which blocks, and who is preempted.

Sequences are served by priority key (priority, then arrival), smallest first. Running sequences continue before waiting
ones are admitted. When blocks run out, the running sequence with the largest key is preempted: it gives up its blocks
and is computed again later. So the first sequence always makes progress, and every sequence gets its turn. While others
decode, a step takes only as many prompt tokens as the prefill budget allows.

Plain bookkeeping: no model, no tensors, no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter

from glimpse.engine.plan import StepPlan
from glimpse.engine.scheduling.block_pool import BlockPool
from glimpse.engine.scheduling.encoder_cache import EncoderCache
from glimpse.engine.scheduling.prefill_budget import NUM_FREE_TOKENS, PrefillBudget, StepWork
from glimpse.engine.scheduling.prefix_cache import PrefixCache
from glimpse.engine.scheduling.sequence import Sequence
from glimpse.engine.scheduling.step_builder import ScheduledStep, StepBuilder

_priority_key = attrgetter("priority_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """The memory that the scheduler distributes, and the sizes of its steps."""

    num_blocks: int
    """KV blocks for sequences."""
    block_size: int
    """Tokens in a KV block."""
    max_model_len: int
    """The most tokens of a sequence, prompt and answer together."""
    max_batch_tokens: int
    """The most tokens computed in a step."""
    max_sequences: int
    """The most sequences that run at a time."""
    encoder_bytes_per_token: int
    """Size of the encoder output of one placeholder token."""
    encoder_cache_bytes: int
    """Memory for encoder outputs. One medium that fills the context window fits in any case."""
    prefix_caching: bool
    """Computed blocks are shared between sequences with the same prefix."""
    max_decode_slowdown: float
    """How much longer a step may take with prompt tokens than without, as a factor of at least 1."""
    max_draft_tokens: int = 0
    """The most draft tokens of a sequence in a step; 0 turns speculative decoding off."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a sequence could wait forever under these limits.
        """
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len: expected at most {self.num_blocks * self.block_size} tokens ({self.num_blocks} blocks "
                f"of {self.block_size}), got {self.max_model_len}"
            )
        if self.max_batch_tokens < 1:
            raise ValueError(f"max_batch_tokens: expected at least 1, got {self.max_batch_tokens}")
        if self.max_sequences < 1:
            raise ValueError(f"max_sequences: expected at least 1, got {self.max_sequences}")


class Scheduler:
    """The waiting and the running sequences, and the memory that they share."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.block_pool = BlockPool(limits.num_blocks)
        self.encoder_cache = EncoderCache(
            bytes_per_token=limits.encoder_bytes_per_token,
            capacity_bytes=max(limits.encoder_cache_bytes, limits.max_model_len * limits.encoder_bytes_per_token),
        )
        self._prefix_cache = PrefixCache(
            pool=self.block_pool, block_size=limits.block_size, enabled=limits.prefix_caching
        )
        self._prefill_budget = PrefillBudget(max_slowdown=limits.max_decode_slowdown)
        self._max_draft_tokens = limits.max_draft_tokens
        self._block_size = limits.block_size
        self._max_batch_tokens = limits.max_batch_tokens
        # Each running sequence can have a token in each step.
        self._max_sequences = min(limits.max_sequences, limits.max_batch_tokens)
        # Both sorted by priority key.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._ended: dict[int, None] = {}  # ids of sequences that the next plan makes the runner forget

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """The next plan would not be empty."""
        return bool(self._waiting or self._running or self._ended or self.encoder_cache.has_evictions)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        insort(self._waiting, sequence, key=_priority_key)

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence in any state and frees all that it holds. The next plan makes the runner forget it."""
        sequence.has_ended = True
        _discard(self._running, sequence)
        _discard(self._waiting, sequence)
        self._free(sequence)
        if sequence.started:
            self._ended[sequence.sequence_id] = None

    def schedule(self) -> ScheduledStep:
        """Plans the next step.

        Call `complete` or `fail` before the next call. Plans are executed in order, so a block that is free here may
        still be written by a step in flight for a sequence that has ended: its new owner writes it later.
        """
        builder = self._begin_step()
        self._continue_running(builder)
        self._admit_waiting(builder)
        num_media_tokens = self.encoder_cache.num_tokens_to_encode
        encode, evicted = self.encoder_cache.finish_plan()
        ended, self._ended = tuple(self._ended), {}
        plan = StepPlan(
            ended=ended, started=tuple(builder.started), evicted=evicted, encode=encode, chunks=tuple(builder.chunks)
        )
        return ScheduledStep(
            plan=plan,
            sequences=tuple(builder.sequences),
            num_cached_tokens=builder.num_cached_tokens,
            num_preemptions=builder.num_preemptions,
            work=StepWork(
                num_decodes=plan.num_tokens - builder.num_prompt_tokens,
                num_prompt_tokens=builder.num_prompt_tokens,
                num_media_tokens=num_media_tokens,
            ),
        )

    def complete(self, scheduled: ScheduledStep) -> None:
        """Counts the tokens of a step as computed; a step in flight is computed before any step planned from now on.

        Registers the blocks that the step fills. The sequences must have their accepted draft tokens by now, but not
        the tokens sampled after them.
        """
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True):
            # The sequence has the accepted draft tokens; the KV of the others is overwritten later.
            sequence.num_computed_tokens = min(chunk.start + len(chunk.token_ids), sequence.num_tokens)
            self._prefix_cache.register_blocks(sequence, first_token=chunk.start)
            self.encoder_cache.advance(sequence, first_token=chunk.start)

    def observe(self, scheduled: ScheduledStep, seconds: float) -> None:
        """Records how long a step took."""
        # Without samples a runner need not wait until its device has computed the step.
        if any(chunk.samples for chunk in scheduled.plan.chunks):
            self._prefill_budget.observe(scheduled.work, seconds)

    def fail(self, scheduled: ScheduledStep) -> None:
        """Takes a failed step back. Its sequences are restarted in the runner and compute the same tokens again."""
        for sequence in scheduled.sequences:
            self._restart(sequence)
        # The runner must be told again what to forget. Except if forgetting was all that the step had to do and that
        # failed: repeating it would never end.
        plan, work = scheduled.plan, scheduled.work
        if work.num_decodes or work.num_prompt_tokens:
            self._ended |= dict.fromkeys(plan.ended)
            self.encoder_cache.fail(encoded=(item.key for item in plan.encode), evicted=plan.evicted)

    def roll_back(self, scheduled: ScheduledStep, ahead: ScheduledStep) -> None:
        """Takes `complete` back for a step that failed afterwards, and the step planned since. Call `fail` next.

        The sequences of both steps wait again: their blocks may contain nothing, and some may be shared.
        """
        for chunk in scheduled.plan.chunks:
            self._prefix_cache.evict_blocks(chunk.block_table, chunk.start, chunk.start + len(chunk.token_ids))
        for sequence in (*scheduled.sequences, *ahead.sequences):
            sequence.drop_pending_token()
            if _discard(self._running, sequence):
                self._free(sequence)
                self.add(sequence)
        self.fail(ahead)

    def _restart(self, sequence: Sequence) -> None:
        self.encoder_cache.release(sequence)
        if sequence.started:
            sequence.started = False
            self._ended[sequence.sequence_id] = None

    def _begin_step(self) -> StepBuilder:
        num_decodes = sum(sequence.decodes for sequence in self._running)
        budget = self._prefill_budget
        return StepBuilder(
            num_tokens_left=self._max_batch_tokens,
            num_decodes_left=num_decodes,
            num_prompt_tokens_left=budget.num_prompt_tokens if num_decodes else self._max_batch_tokens,
            media_weight=budget.media_weight,
            num_draft_tokens_left=max(0, NUM_FREE_TOKENS - num_decodes),
        )

    def _continue_running(self, builder: StepBuilder) -> None:
        index = 0
        while index < len(self._running):  # preemption shortens the list from its end
            if not self._running[index].is_complete:
                self._continue(self._running[index], builder)
            index += 1

    def _continue(self, sequence: Sequence, builder: StepBuilder) -> None:
        decodes = sequence.decodes
        builder.num_decodes_left -= decodes
        num_tokens = 1 if decodes else builder.num_free_tokens
        end = self._schedulable_end(sequence, sequence.num_computed_tokens, num_tokens, builder)
        if end > sequence.num_computed_tokens and self._make_room(sequence, end, builder):
            draft_token_ids = self._propose(sequence, builder) if decodes else ()
            self._plan_until(sequence, end, builder, draft_token_ids=draft_token_ids, is_prompt=not decodes)

    def _schedulable_end(self, sequence: Sequence, start: int, num_tokens: int, builder: StepBuilder) -> int:
        """Where the tokens end that the step can compute from `start` on, at most `num_tokens`. Plans their media."""
        end = min(sequence.num_tokens, start + num_tokens)
        num_before = self.encoder_cache.num_tokens_to_encode
        num_left = builder.num_prompt_tokens_left - (end - start)
        max_media_tokens = int(num_left / builder.media_weight)
        end = self.encoder_cache.plan_media(sequence, start, end, max_more_tokens=max_media_tokens)
        num_encoded = self.encoder_cache.num_tokens_to_encode - num_before
        builder.num_prompt_tokens_left -= int(num_encoded * builder.media_weight)
        return end

    def _propose(self, sequence: Sequence, builder: StepBuilder) -> tuple[int, ...]:
        """Draft tokens for a decoding sequence, up to any end token, as many as step, blocks and answer allow."""
        num_left = min(builder.num_draft_tokens_left, builder.num_tokens_left - builder.num_decodes_left - 1)
        num_wanted = min(self._max_draft_tokens, num_left, sequence.max_tokens - sequence.num_generated - 1)
        if num_wanted < 1 or not sequence.num_generated:
            return ()
        token_ids = sequence.proposer.propose(sequence.token_ids, num_wanted)
        num_blocks = self._num_missing_blocks(sequence, sequence.num_tokens + len(token_ids))
        if num_blocks + builder.num_decodes_left > self.block_pool.num_free:
            return ()  # the decodes that follow may need a block each: none is preempted for draft tokens
        return tuple(takewhile(lambda token_id: token_id not in sequence.end_token_ids, token_ids))

    def _plan_until(
        self,
        sequence: Sequence,
        end: int,
        builder: StepBuilder,
        *,
        draft_token_ids: tuple[int, ...] = (),
        is_prompt: bool,
    ) -> None:
        """Plans the uncomputed tokens of a running sequence before `end`. `is_prompt`: the prefill budget pays them."""
        num_tokens = end - sequence.num_computed_tokens
        self._extend_table(sequence, end + len(draft_token_ids))
        builder.add(sequence, end, draft_token_ids)
        known_end = min(end, sequence.num_known_tokens)
        builder.hashes_in_progress |= self._prefix_cache.hashes(sequence, sequence.num_computed_tokens, known_end)
        if is_prompt:
            builder.num_prompt_tokens += num_tokens
            builder.num_prompt_tokens_left -= num_tokens

    def _make_room(self, sequence: Sequence, end: int, builder: StepBuilder) -> bool:
        """Preempts sequences, largest priority key first, until blocks for the tokens before `end` are free.

        Returns:
            False if the sequence itself was preempted.
        """
        while self._num_missing_blocks(sequence, end) > self.block_pool.num_free:
            victim = self._running.pop()
            self._free(victim)
            self.add(victim)
            builder.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, builder: StepBuilder) -> None:
        """Admits waiting sequences in order, until one does not fit.

        A sequence whose next block is computed in this very step is skipped, with a place reserved for it: the next
        step finds the block in the cache.
        """
        num_skipped = 0
        while num_skipped < len(self._waiting) and len(self._running) + num_skipped < self._max_sequences:
            sequence = self._waiting[num_skipped]
            if sequence.is_complete:
                num_skipped += 1
                continue
            matched = self._prefix_cache.match(sequence)
            if self._prefix_cache.next_hash(sequence, len(matched)) in builder.hashes_in_progress:
                num_skipped += 1
                continue
            if not self._fits(sequence, matched):
                return
            start = len(matched) * self._block_size
            end = self._schedulable_end(sequence, start, builder.num_free_tokens, builder)
            if end <= start:
                return
            self._admit(sequence, matched, builder)
            self._plan_until(sequence, end, builder, is_prompt=True)

    def _fits(self, sequence: Sequence, matched: Many[int]) -> bool:
        """Blocks for all tokens of a waiting sequence are free.

        Blocks for its first chunk would be enough to begin, but the work is lost if the prompt is preempted. It also
        keeps a preempted sequence from returning at once: it freed fewer blocks than it needs.
        """
        num_revived = sum(self.block_pool.is_free(block_id) for block_id in matched)
        num_wanted = self._num_missing_blocks(sequence, sequence.num_tokens) - len(matched) + num_revived
        return num_wanted <= self.block_pool.num_free

    def _admit(self, sequence: Sequence, matched: list[int], builder: StepBuilder) -> None:
        for block_id in matched:
            self.block_pool.retain(block_id)
        sequence.block_table = matched
        sequence.num_computed_tokens = len(matched) * self._block_size
        _discard(self._waiting, sequence)
        insort(self._running, sequence, key=_priority_key)
        if not sequence.admitted:
            sequence.admitted = True
            sequence.num_cached_tokens = sequence.num_computed_tokens
            builder.num_cached_tokens += sequence.num_cached_tokens

    def _num_missing_blocks(self, sequence: Sequence, end: int) -> int:
        return -(-end // self._block_size) - len(sequence.block_table)

    def _extend_table(self, sequence: Sequence, end: int) -> None:
        for _ in range(self._num_missing_blocks(sequence, end)):
            sequence.block_table.append(self.block_pool.allocate())

    def _free(self, sequence: Sequence) -> None:
        # In reverse: the tail of a prompt is shared by fewer sequences, so it should be evicted before its head.
        for block_id in reversed(sequence.block_table):
            self.block_pool.release(block_id)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        self.encoder_cache.release(sequence)


def _discard(queue: list[Sequence], sequence: Sequence) -> bool:
    """Removes a sequence from a queue sorted by priority key; False if it is not there."""
    index = bisect_left(queue, sequence.priority_key, key=_priority_key)
    if index == len(queue) or queue[index] is not sequence:
        return False
    del queue[index]
    return True
