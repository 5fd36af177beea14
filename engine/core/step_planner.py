"""Plans a step: which sequences compute in it, how many tokens of each, and who is preempted for them.

Running sequences continue before waiting ones are admitted, except that the prompts of several clients take turns, the
client served least first. When blocks run out, a running sequence is preempted: it gives up its blocks and is computed
again later. While others decode, a step takes only as many prompt tokens as the prefill budget allows. While there are
several clients, `decode_turns` bounds the decodes of a step.
"""

from operator import attrgetter

import msgspec

from glimpse.engine.core.draft_budget import DraftBudget, propose
from glimpse.engine.core.fairness.decode_turns import DecodeTurns
from glimpse.engine.core.fairness.flow import Client
from glimpse.engine.core.fairness.preemption import (
    NUM_PROTECTED_TOKENS,
    Shortage,
    displaced_by,
    preempted_for_blocks,
)
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.prefill_budget import PrefillBudget
from glimpse.engine.core.scheduler_state import SchedulerState
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.core.step_builder import ScheduledStep, StepBuilder

_service = attrgetter("flow.client.service")
_MAX_RESERVED = 8
"""The most waiting sequences that a step makes room for. More follow in the next step."""


class StepPlanner:
    """Plans steps for the sequences of the scheduler, within budgets that follow from recent steps."""

    def __init__(self, limits: SchedulerLimits, state: SchedulerState) -> None:
        self._state = state
        self._prefill_budget = PrefillBudget(max_slowdown=limits.max_decode_slowdown, uses_gpu=limits.uses_gpu)
        self._draft_budget = DraftBudget(max_draft_tokens=limits.max_draft_tokens, is_adaptive=limits.adaptive_drafts)
        self._decode_turns = DecodeTurns()
        self._block_size = limits.block_size
        self._max_batch_tokens = limits.max_batch_tokens
        # Each running sequence can have a token in each step.
        self._max_sequences = min(limits.max_sequences, limits.max_batch_tokens)

    def plan(self) -> StepBuilder:
        """Plans the next step. Its sequences run and have the blocks for their tokens."""
        builder = self._begin_step()
        self._continue_prompts(self._continue_running(builder), builder)
        self._admit_waiting(builder)
        for sequence in builder.skipped:
            self._state.queue.stop(sequence)
        return builder

    def observe(self, scheduled: ScheduledStep, seconds: float) -> None:
        """Records how long a step took."""
        self._decode_turns.count_seconds(seconds)
        # Without samples a runner need not wait until its device has computed the step.
        if any(chunk.samples for chunk in scheduled.plan.chunks):
            work, turns = scheduled.work, self._decode_turns
            turns.observe(work, seconds)
            decode_seconds = turns.expected_seconds(work.num_decodes) if scheduled.leaves_out_decodes else None
            self._prefill_budget.observe(work, seconds, decode_seconds=decode_seconds)
            self._draft_budget.observe(scheduled, seconds)

    def _begin_step(self) -> StepBuilder:
        num_preemptions, num_reserved_blocks = self._make_way()
        decoding = [sequence for sequence in self._state.running if sequence.decodes]
        newcomer = self._newcomer()
        chosen = self._decode_turns.begin_step(
            decoding, is_shared=not self._state.queue.has_one_client, has_newcomer=newcomer is not None
        )
        num_decodes, num_left_out, budget = len(chosen), len(decoding) - len(chosen), self._prefill_budget
        # A newcomer's prompt may take the tokens of those that are left out for it.
        num_more = min(num_left_out, newcomer.num_tokens) if newcomer else 0
        return StepBuilder(
            num_tokens_left=self._max_batch_tokens,
            num_decodes_left=num_decodes,
            num_prompt_tokens_left=budget.num_prompt_tokens + num_more if num_decodes else self._max_prompt_tokens(),
            media_weight=budget.media_weight,
            num_draft_tokens=self._draft_budget.plan(chosen),
            num_preemptions=num_preemptions,
            num_reserved_blocks=num_reserved_blocks,
            left_out={*decoding}.difference(chosen) if num_left_out else set(),
            has_only_newcomers=self._decode_turns.begins_newcomer,
        )

    def _max_prompt_tokens(self) -> int:
        """Returns the prompt tokens of a step that decodes nothing. Newcomers would wait for a large one of others."""
        turns = self._decode_turns
        is_bounded = turns.expects_newcomers and not turns.begins_newcomer
        return (
            min(self._prefill_budget.num_brief_tokens, self._max_batch_tokens) if is_bounded else self._max_batch_tokens
        )

    def _newcomer(self) -> Sequence | None:
        """Returns the next sequence to be admitted if it is a newcomer's, and finds a place and blocks."""
        sequence = self._state.queue.newcomer() if len(self._state.running) < self._max_sequences else None
        return sequence if sequence and self._state.fits(sequence, self._state.prefix_cache.match(sequence)) else None

    def _make_way(self) -> tuple[int, int]:
        """Preempts sequences of those who have more than their share, for waiting ones of those who have less.

        Returns:
            How many, and how many free blocks the running sequences must leave to the waiting ones.
        """
        reserved: list[Sequence] = []
        num_displaced = num_reserved_blocks = 0
        while not self._state.queue.has_equal_shares and len(reserved) < _MAX_RESERVED:
            sequence = self._state.queue.head()
            if sequence is None or sequence.is_complete:
                break
            num_wanted = self._state.block_tables.num_wanted(sequence, self._state.prefix_cache.match(sequence))
            shortage = Shortage(
                lacks_place=len(self._state.running) + len(reserved) >= self._max_sequences,
                num_blocks=num_reserved_blocks + num_wanted - self._state.block_pool.num_free,
                num_wanted_blocks=num_wanted,
            )
            displaced: list[Sequence] = []
            if shortage.exists:
                displaced = displaced_by(sequence, self._state.running, shortage, self._state.block_tables.num_freed)
                if not displaced:
                    break
            for victim in displaced:
                victim.protected_until = victim.num_tokens + NUM_PROTECTED_TOKENS
                self._state.preempt(victim)
            self._state.queue.start(sequence)
            reserved.append(sequence)
            num_displaced += len(displaced)
            num_reserved_blocks += num_wanted
        for sequence in reserved:
            self._state.queue.stop(sequence)
        return num_displaced, num_reserved_blocks if num_displaced else 0

    def _continue_running(self, builder: StepBuilder) -> list[Sequence]:
        """Continues the running sequences. With several clients, prompts are left for later and returned."""
        prompts: list[Sequence] = []
        for sequence in tuple(self._state.running):
            if not sequence.is_running or sequence in builder.left_out:
                continue
            if sequence.decodes:
                self._decode(sequence, builder)
            elif sequence.is_complete:
                continue
            elif self._state.queue.has_one_client:
                self._continue(sequence, builder)
            else:
                prompts.append(sequence)
        return prompts

    def _continue_prompts(self, prompts: list[Sequence], builder: StepBuilder) -> None:
        """Continues the prompts of several clients and admits waiting sequences, the client served least first."""
        for sequence in sorted(prompts, key=_service):
            self._admit_waiting(builder, before=sequence.flow.client)
            if sequence.is_running and not builder.has_only_newcomers:
                self._continue(sequence, builder)

    def _continue(self, sequence: Sequence, builder: StepBuilder) -> None:
        """Continues a prompt, as far as the step has tokens left for it."""
        end = self._schedulable_end(sequence, sequence.num_computed_tokens, builder.num_free_tokens, builder)
        if end > sequence.num_computed_tokens and self._make_room(sequence, end, builder):
            self._plan_until(sequence, end, builder, is_prompt=True)

    def _decode(self, sequence: Sequence, builder: StepBuilder) -> None:
        """Plans the next token of a sequence, and draft tokens after it."""
        builder.num_decodes_left -= 1
        start = sequence.num_computed_tokens
        end = start + 1
        # A generated token belongs to no medium.
        if start < sequence.num_prompt_tokens and self._schedulable_end(sequence, start, 1, builder) == start:
            return
        if self._make_room(sequence, end, builder):
            draft_token_ids = self._propose(sequence, builder) if builder.num_draft_tokens else ()
            self._plan_until(sequence, end, builder, draft_token_ids=draft_token_ids, is_prompt=False)

    def _schedulable_end(self, sequence: Sequence, start: int, num_tokens: int, builder: StepBuilder) -> int:
        """Where the tokens end that the step can compute from `start` on, at most `num_tokens`. Plans their media."""
        end = _whole_end(sequence, start, min(sequence.num_tokens, start + num_tokens), builder)
        num_before = self._state.encoder_cache.num_tokens_to_encode
        num_left = builder.num_prompt_tokens_left - (end - start)
        max_media_tokens = int(num_left / builder.media_weight)
        end = self._state.encoder_cache.plan_media(sequence, start, end, max_more_tokens=max_media_tokens)
        num_encoded = self._state.encoder_cache.num_tokens_to_encode - num_before
        if num_encoded:
            cost = int(num_encoded * builder.media_weight)
            builder.num_prompt_tokens_left -= cost
            sequence.flow.client.service += cost
        return end

    def _propose(self, sequence: Sequence, builder: StepBuilder) -> tuple[int, ...]:
        """Draft tokens for a decoding sequence, as many as planned and as step and blocks allow."""
        num_left = builder.num_tokens_left - builder.num_decodes_left - 1
        token_ids = propose(sequence, min(builder.num_draft_tokens.get(sequence, 0), num_left))
        num_blocks = self._state.block_tables.num_missing(sequence, sequence.num_tokens + len(token_ids))
        if num_blocks + builder.num_decodes_left > self._state.block_pool.num_free:
            return ()  # the decodes that follow may need a block each: none is preempted for draft tokens
        return token_ids

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
        start = sequence.num_computed_tokens
        self._state.block_tables.extend(sequence, end + len(draft_token_ids))
        if end > sequence.num_served_tokens:
            sequence.flow.client.service += end - sequence.num_served_tokens
            sequence.num_served_tokens = end
        builder.add(sequence, end, draft_token_ids)
        if start // self._block_size < end // self._block_size:
            known_end = min(end, sequence.num_known_tokens)
            builder.hashes_in_progress |= self._state.prefix_cache.hashes(sequence, start, known_end)
        if is_prompt:
            builder.num_prompt_tokens += end - start
            builder.num_prompt_tokens_left -= end - start
            self._decode_turns.append(sequence)

    def _make_room(self, sequence: Sequence, end: int, builder: StepBuilder) -> bool:
        """Preempts sequences that are not in the step yet until blocks for the tokens before `end` are free.

        Returns:
            False if the sequence itself was preempted.
        """
        while (num_missing := self._state.block_tables.num_missing(sequence, end)) > 0:
            if num_missing <= self._state.block_pool.num_free - builder.num_reserved_blocks:
                return True
            victim = self._victim(builder)
            self._state.preempt(victim)
            builder.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _victim(self, builder: StepBuilder) -> Sequence:
        if self._state.queue.has_equal_shares:
            return self._state.running[-1]
        planned = set(builder.sequences)
        return preempted_for_blocks(self._state.running, (each for each in self._state.running if each not in planned))

    def _admit_waiting(self, builder: StepBuilder, *, before: Client | None = None) -> None:
        """Admits waiting sequences in order, until one does not fit, or is of a client served more than `before`.

        A sequence whose next block is computed in this very step is skipped, with a place reserved for it: the next
        step finds the block in the cache.
        """
        while len(self._state.running) + len(builder.skipped) < self._max_sequences:
            sequence = self._state.queue.head()
            if sequence is None or (before is not None and not sequence.flow.client.precedes(before)):
                return
            if builder.has_only_newcomers and not self._state.queue.is_newcomer(sequence.flow.client):
                return
            matched = [] if sequence.is_complete else self._state.prefix_cache.match(sequence)
            next_hash = self._state.prefix_cache.next_hash(sequence, len(matched))
            if sequence.is_complete or next_hash in builder.hashes_in_progress:
                self._state.queue.start(sequence)
                builder.skipped.append(sequence)
                continue
            if not self._state.fits(sequence, matched):
                return
            start = len(matched) * self._block_size
            end = self._schedulable_end(sequence, start, builder.num_free_tokens, builder)
            if end <= start:
                return
            self._admit(sequence, matched, builder)
            self._plan_until(sequence, end, builder, is_prompt=True)

    def _admit(self, sequence: Sequence, matched: list[int], builder: StepBuilder) -> None:
        self._state.admit(sequence, matched)
        if not sequence.admitted:
            sequence.admitted = True
            num_cached_tokens = sequence.num_computed_tokens
            sequence.stats = msgspec.structs.replace(sequence.stats, num_cached_tokens=num_cached_tokens)
            builder.num_cached_tokens += num_cached_tokens
            builder.num_admitted_tokens += sequence.num_prompt_tokens


def _whole_end(sequence: Sequence, start: int, end: int, builder: StepBuilder) -> int:
    """Returns the last end up to `end` in no indivisible part. A part at `start` may overdraw the prefill budget."""
    part = sequence.part_around(end)
    if part is None:
        return end
    first, last = part
    if first > start:
        return first
    return last if last - start <= builder.num_tokens_left - builder.num_decodes_left else start
