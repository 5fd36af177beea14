"""Plans a step: which sequences compute in it, how many tokens of each, and who is preempted for them.

Running sequences continue before waiting ones are admitted, except that the prompts of several clients take turns, the
client served least first. When blocks run out, a running sequence is preempted: it gives up its blocks and is computed
again later. While others decode, a step takes only as many prompt tokens as the prefill budget allows. While there are
several clients, `decode_turns` bounds the decodes of a step.

Clients in the background get what others leave: as long as there are others, none of their prompts is computed, and few
of their sequences decode.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from itertools import compress
from operator import attrgetter

from glimpse.engine.core.fairness.flow import Client
from glimpse.engine.core.fairness.preemption import (
    NUM_PROTECTED_TOKENS,
    Shortage,
    displaced_by,
    preempted_for_blocks,
)
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.memory.block_pool import BlockTables
from glimpse.engine.core.plan import SequenceChunk, SequenceStart, StepPlan
from glimpse.engine.core.prefill_budget import StepWork
from glimpse.engine.core.scheduler_state import SchedulerState
from glimpse.engine.core.sequence import RUNNING, WAITING, Sequence

_service = attrgetter("flow.client.service")
_MAX_RESERVED = 8
"""The most waiting sequences that a step makes room for. More follow in the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """A step's plan and the sequences that it was made from."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    """The sequence of each of `plan.chunks`."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache, of sequences first admitted in this step."""
    num_preemptions: int
    work: StepWork
    num_admitted_tokens: int = 0
    """All prompt tokens of these sequences."""

    @property
    def num_draft_tokens(self) -> int:
        return sum(chunk.num_draft_tokens for chunk in self.plan.chunks)

    def keeping(self, wanted: Many[bool]) -> "ScheduledStep":
        """Returns the step without the sequences and chunks that are not wanted."""
        chunks = tuple(compress(self.plan.chunks, wanted))
        return replace(self, plan=replace(self.plan, chunks=chunks), sequences=tuple(compress(self.sequences, wanted)))


EMPTY_STEP = ScheduledStep(
    plan=StepPlan(),
    sequences=(),
    num_cached_tokens=0,
    num_preemptions=0,
    work=StepWork(num_decodes=0, num_prompt_tokens=0, num_media_tokens=0),
)
"""There is nothing to do."""


class StepPlanner:
    """One step being planned: what is planned so far, and how much is left of each budget."""

    def __init__(self, limits: SchedulerLimits, state: SchedulerState) -> None:
        self._state = state
        self._queue = state.queue
        self._running = state.running
        self._in_runner = state.in_runner
        self._block_tables = state.block_tables
        self._sliding_tables = state.sliding_tables
        self._prefix_cache = state.prefix_cache
        self._encoder_cache = state.encoder_cache
        self._block_size = limits.block_size
        self._background_waits = state.queue.background_waits
        self._max_sequences = limits.max_running
        self._states = state.states
        # Budgets.
        self._max_tokens = self._num_tokens_left = limits.max_batch_tokens
        self._num_decodes_left = 0  # sequences not planned yet that are to decode; a token is reserved for each
        self._num_prompt_tokens_left = 0  # a large medium may overdraw it
        self._media_weight = state.prefill_budget.media_weight  # cost of encoding one placeholder token
        self._num_draft_tokens: Mapping[Sequence, int] = {}  # to propose; sequences without any are missing
        self._num_to_propose = 0  # draft tokens, for the next step, by the model
        self._reserved_blocks: Mapping[BlockTables, int] = {}  # free ones that running sequences leave to waiting ones
        self._decodes = set[Sequence]()  # running sequences that decode
        self._left_out = set[Sequence]()  # others that could, but whose turn comes in a later step
        self._has_only_newcomers = False  # prompts of other clients are computed in a later step
        # The step so far.
        self._sequences: list[Sequence] = []
        self._chunks: list[SequenceChunk] = []
        self._started: list[SequenceStart] = []
        self._hashes_in_progress = set[bytes]()  # of the blocks that the step fills
        self._skipped: list[Sequence] = []  # waiting sequences that have a place but are admitted in a later step
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_admitted_tokens = 0
        self._num_preemptions = 0

    def plan(self, *, ended: tuple[int, ...]) -> ScheduledStep:
        """Plans the step. Its sequences run and have the blocks for their tokens. `ended`: those to forget."""
        self._make_way()
        self._choose_decodes()
        self._continue_prompts(self._continue_running())
        self._admit_waiting()
        for sequence in self._skipped:
            self._queue.stop(sequence)
        return self._finish(ended)

    def _finish(self, ended: tuple[int, ...]) -> ScheduledStep:
        num_media_tokens = self._encoder_cache.num_tokens_to_encode
        encode, evicted = self._encoder_cache.finish_plan()
        plan = StepPlan(
            ended=ended, started=tuple(self._started), evicted=evicted, encode=encode, chunks=tuple(self._chunks)
        )
        return ScheduledStep(
            plan=plan,
            sequences=tuple(self._sequences),
            num_cached_tokens=self._num_cached_tokens,
            num_admitted_tokens=self._num_admitted_tokens,
            num_preemptions=self._num_preemptions,
            work=StepWork(
                num_decodes=self._max_tokens - self._num_tokens_left - self._num_prompt_tokens,
                num_prompt_tokens=self._num_prompt_tokens,
                num_media_tokens=num_media_tokens,
            ),
        )

    def _make_way(self) -> None:
        """Preempts sequences of those who have more than their share, for waiting ones of those who have less.

        The running sequences must leave free blocks to the waiting ones.
        """
        reserved: list[Sequence] = []
        reserved_blocks = Counter[BlockTables]()
        while not self._queue.has_equal_shares and len(reserved) < _MAX_RESERVED:
            sequence = self._queue.head()
            if sequence is None or sequence.is_complete or self._waits_for_others(sequence):
                break
            wanted = self._state.wanted_blocks(sequence, self._prefix_cache.match(sequence))
            shortage = Shortage(
                lacks_place=len(self._running) + len(reserved) >= self._max_sequences,
                num_blocks={tables: reserved_blocks[tables] + num - tables.num_free for tables, num in wanted.items()},
                num_wanted_blocks=wanted[self._block_tables],
            )
            displaced: list[Sequence] = []
            if shortage.exists:
                displaced = displaced_by(sequence, self._running, shortage, self._block_tables)
                if not displaced:
                    break
            for victim in displaced:
                self._state.preempt(victim, num_protected_tokens=NUM_PROTECTED_TOKENS)
            self._queue.start(sequence)
            reserved.append(sequence)
            self._num_preemptions += len(displaced)
            reserved_blocks.update(wanted)
        for sequence in reserved:
            self._queue.stop(sequence)
        self._reserved_blocks = reserved_blocks if self._num_preemptions else {}

    def _choose_decodes(self) -> None:
        """Chooses the sequences that decode, and divides the tokens of the step between them and prompts."""
        decoding = [sequence for sequence in self._running if sequence.decodes]
        waiting_for_others = set[Sequence]()
        if self._background_waits:
            waiting_for_others.update(sequence for sequence in self._running if self._waits_for_others(sequence))
            decoding = [sequence for sequence in decoding if sequence not in waiting_for_others]
        newcomer = self._newcomer()
        turns, budget = self._state.decode_turns, self._state.prefill_budget
        is_shared = self._queue.num_urgent_clients > 1 if self._background_waits else not self._queue.has_one_client
        chosen = turns.begin_step(decoding, is_shared=is_shared, has_newcomer=newcomer is not None)
        num_left_out = len(decoding) - len(chosen)
        if waiting_for_others and chosen:
            able = [sequence for sequence in self._running if sequence in waiting_for_others and sequence.decodes]
            chosen = [*chosen, *turns.take_beside(len(chosen), able)]
        self._decodes, self._num_decodes_left = {*chosen}, len(chosen)
        self._num_draft_tokens = self._state.draft_budget.plan(chosen)
        self._num_to_propose = self._state.draft_budget.num_to_propose(len(chosen))
        self._has_only_newcomers = turns.begins_newcomer
        if num_left_out or waiting_for_others:
            self._left_out = {*decoding, *waiting_for_others} - self._decodes
        if not chosen:
            # Newcomers would wait for a large step of others.
            is_bounded = turns.expects_newcomers and not turns.begins_newcomer
            most = self._num_tokens_left
            self._num_prompt_tokens_left = min(budget.num_brief_tokens, most) if is_bounded else most
            return
        # A newcomer's prompt may take the tokens of those that are left out for it.
        num_more = min(num_left_out, newcomer.num_tokens) if newcomer else 0
        self._num_prompt_tokens_left = num_more
        if newcomer or not budget.is_decode_due:
            num_decodes = len(chosen) + sum(self._num_draft_tokens.values())
            num_expected = self._state.num_expected_decodes
            self._num_prompt_tokens_left += budget.num_prompt_tokens(num_decodes, num_expected=num_expected)

    def _newcomer(self) -> Sequence | None:
        """Returns the next sequence to be admitted if it is a newcomer's, and finds a place and blocks."""
        sequence = self._queue.newcomer() if len(self._running) < self._max_sequences else None
        return sequence if sequence and self._state.fits(sequence, self._prefix_cache.match(sequence)) else None

    def _continue_running(self) -> list[Sequence]:
        """Continues the running sequences. With several clients, prompts are left for later and returned.

        What waits for others does nothing.
        """
        prompts: list[Sequence] = []
        for sequence in tuple(self._running):
            if sequence.status is not RUNNING:
                continue
            if sequence in self._decodes:
                self._decode(sequence)
            elif sequence in self._left_out or sequence.is_complete:
                continue
            elif self._queue.has_one_client:
                self._continue(sequence)
            else:
                prompts.append(sequence)
        return prompts

    def _continue_prompts(self, prompts: list[Sequence]) -> None:
        """Continues the prompts of several clients and admits waiting sequences, the client served least first."""
        for sequence in sorted(prompts, key=_service):
            self._admit_waiting(before=sequence.flow.client)
            if sequence.status is RUNNING and not self._has_only_newcomers:
                self._continue(sequence)

    def _continue(self, sequence: Sequence) -> None:
        """Continues a prompt, as far as the step has tokens left for it."""
        end = self._schedulable_end(sequence, sequence.num_computed_tokens, self._num_free_tokens)
        if end > sequence.num_computed_tokens and self._make_room(sequence, end):
            self._add_prompt(sequence, end)

    def _decode(self, sequence: Sequence) -> None:
        """Plans the next token of a sequence, and draft tokens after it."""
        self._num_decodes_left -= 1
        start = sequence.num_computed_tokens
        end = start + 1
        # A generated token belongs to no medium.
        if start < sequence.request.num_prompt_tokens and self._schedulable_end(sequence, start, 1) == start:
            return
        if self._make_room(sequence, end):
            self._add(sequence, end, self._propose(sequence) if self._num_draft_tokens else ())

    def _waits_for_others(self, sequence: Sequence) -> bool:
        """The sequence is in the background, and others are not."""
        return self._background_waits and sequence.flow.client.is_background

    @property
    def _num_free_tokens(self) -> int:
        """Prompt tokens that the step can still take."""
        return max(0, min(self._num_tokens_left - self._num_decodes_left, self._num_prompt_tokens_left))

    def _schedulable_end(self, sequence: Sequence, start: int, num_tokens: int) -> int:
        """Where the tokens end that the step can compute from `start` on, at most `num_tokens`. Plans their media."""
        most_tokens = self._num_tokens_left - self._num_decodes_left
        end = sequence.request.whole_end(start, min(sequence.num_tokens, start + num_tokens), most_tokens)
        num_before = self._encoder_cache.num_tokens_to_encode
        num_left = self._num_prompt_tokens_left - (end - start)
        is_whole = sequence.request.bidirectional_prompt  # it may overdraw the budget with all of its media
        max_media_tokens = self._max_tokens if is_whole else int(num_left / self._media_weight)
        end = self._encoder_cache.plan_media(sequence, start, end, max_more_tokens=max_media_tokens)
        num_encoded = self._encoder_cache.num_tokens_to_encode - num_before
        if num_encoded:
            cost = int(num_encoded * self._media_weight)
            self._num_prompt_tokens_left -= cost
            sequence.flow.client.service += cost
        if sequence.request.part_around(end) is None:
            return end
        # A prompt that is computed whole waits for all of its media, and holds none meanwhile: others might need room.
        self._encoder_cache.release(sequence)
        return start

    def _propose(self, sequence: Sequence) -> tuple[int, ...]:
        """Draft tokens for a decoding sequence, as many as planned and as step and blocks allow."""
        num_left = self._num_tokens_left - self._num_decodes_left - 1
        if self._states is not None:
            num_left = min(num_left, self._states.num_spare(sequence))
        token_ids = self._state.draft_budget.propose(sequence, min(self._num_draft_tokens.get(sequence, 0), num_left))
        end = sequence.num_tokens + len(token_ids)
        num_short = max(tables.num_missing(sequence, end) - tables.num_free for tables in self._state.tables)
        # The decodes that follow may need a block each: none is preempted for draft tokens.
        return () if num_short + self._num_decodes_left > 0 else token_ids

    def _add_prompt(self, sequence: Sequence, end: int) -> None:
        """Adds the uncomputed tokens of a running sequence before `end`. The prefill budget pays them."""
        num_tokens = end - sequence.num_computed_tokens
        self._add(sequence, end)
        self._num_prompt_tokens += num_tokens
        self._num_prompt_tokens_left -= num_tokens
        self._state.decode_turns.append(sequence)

    def _add(self, sequence: Sequence, end: int, draft_token_ids: tuple[int, ...] = ()) -> None:
        """Adds the uncomputed tokens of a running sequence before `end`, then draft tokens."""
        start, num_drafts = sequence.num_computed_tokens, len(draft_token_ids)
        num_tokens = end - start + num_drafts
        block_table, sliding = self._block_tables.extend(sequence, end + num_drafts), self._sliding_tables
        if end > sequence.num_served_tokens:
            sequence.flow.client.service += end - sequence.num_served_tokens
            sequence.num_served_tokens = end
        if sequence not in self._in_runner:
            self._in_runner.add(sequence)
            self._started.append(sequence.for_runner)
        self._num_tokens_left -= num_tokens
        self._sequences.append(sequence)
        token_ids = sequence.token_ids
        is_single = num_tokens == 1  # a decode
        self._chunks.append(
            SequenceChunk(
                sequence_id=sequence.sequence_id,
                start=start,
                token_ids=(token_ids[start],) if is_single else (*token_ids[start:end], *draft_token_ids),
                block_table=block_table,
                sliding_table=None if sliding is None else sliding.extend(sequence, end + num_drafts),
                samples=end == len(token_ids) and sequence.request.pooling is None,
                num_draft_tokens=num_drafts,
                num_proposed_tokens=self._num_to_propose,
                states=None if self._states is None else self._states.plan(sequence, start, end, num_drafts),
            )
        )
        if start // self._block_size < end // self._block_size:
            known_end = min(end, sequence.num_known_tokens)
            self._hashes_in_progress |= self._prefix_cache.hashes(sequence, start, known_end)

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Preempts sequences that are not in the step yet until blocks for the tokens before `end` are free.

        Returns:
            False if the sequence itself was preempted.
        """
        if (sliding := self._sliding_tables) is None:
            return self._make_room_in(self._block_tables, sequence, end)
        sliding.trim(sequence, sequence.num_computed_tokens)
        return self._make_room_in(self._block_tables, sequence, end) and self._make_room_in(sliding, sequence, end)

    def _make_room_in(self, tables: BlockTables, sequence: Sequence, end: int) -> bool:
        while (num_missing := tables.num_missing(sequence, end)) > 0:
            if num_missing <= tables.num_free - self._reserved_blocks.get(tables, 0):
                return True
            victim = self._victim()
            self._state.preempt(victim)
            self._num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _victim(self) -> Sequence:
        if self._queue.has_equal_shares:
            return self._running[-1]
        candidates = set(self._running).difference(self._sequences)
        return preempted_for_blocks(self._running, candidates, self._block_tables)

    def _admit_waiting(self, *, before: Client | None = None) -> None:
        """Admits waiting sequences in order, until one does not fit, or is of a client served more than `before`.

        A sequence whose next block is computed in this very step is skipped, with a place reserved for it: the next
        step finds the block in the cache. If layers keep states, so is one that waits for a snapshot.
        """
        while len(self._running) + len(self._skipped) < self._max_sequences:
            sequence = self._queue.head()
            if sequence is None or (before is not None and not sequence.flow.client.precedes(before)):
                return
            if self._waits_for_others(sequence):
                return
            if self._has_only_newcomers and not self._queue.is_newcomer(sequence.flow.client):
                return
            matched = [] if sequence.is_complete else self._prefix_cache.match(sequence)
            if sequence.is_complete or self._is_in_progress(sequence, len(matched)):
                self._queue.start(sequence)
                self._skipped.append(sequence)
                continue
            if not self._state.fits(sequence, matched):
                return
            start = len(matched) * self._block_size
            end = self._schedulable_end(sequence, start, self._num_free_tokens)
            if end <= start:
                return
            if sequence.status is WAITING:  # else it has been counted
                self._num_cached_tokens += start
                self._num_admitted_tokens += sequence.request.num_prompt_tokens
            self._state.admit(sequence, matched)
            self._add_prompt(sequence, end)

    def _is_in_progress(self, sequence: Sequence, num_blocks: int) -> bool:
        """Whether a waiting sequence should begin later, with more than its first `num_blocks` blocks."""
        if self._states is not None:
            return self._states.awaits_snapshot(sequence, num_blocks)
        return self._prefix_cache.next_hash(sequence, num_blocks) in self._hashes_in_progress
