"""Decides what each step computes: who runs, how many tokens of each, in which blocks, and who must give way.

The sequence of the smallest rank (priority, then arrival) goes first. Running sequences are continued before waiting
ones are admitted; when blocks run out, the running sequence of the largest rank gives up its own and waits again, to be
computed anew. So whoever ranks first moves on, and everyone's turn comes. Knows no model, no tensors and no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from operator import attrgetter

from engine.block_pool import BlockPool
from engine.encoder_cache import EncoderCache
from engine.plan import SequenceChunk, SequenceStart, StepPlan
from engine.prefix_cache import PrefixCache
from engine.sequence import Sequence

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A step's plan, and what it came from."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    """Those of `plan.chunks`, one by one."""
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared the sequences that start in this step."""
    num_preemptions: int


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A plan in the making."""

    num_tokens_left: int
    """What the step may still compute."""
    num_decodes_left: int
    """Running sequences not planned yet that want a single token, which is kept for them."""
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    chunks: list[SequenceChunk] = field(default_factory=list[SequenceChunk])
    started: list[SequenceStart] = field(default_factory=list[SequenceStart])
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    def end_for(self, sequence: Sequence, start: int) -> int:
        """Where the tokens of a sequence from `start` on end that the step can take."""
        return min(sequence.num_tokens, start + self.num_tokens_left - self.num_decodes_left)

    def add(self, sequence: Sequence, end: int) -> None:
        """Plans the uncomputed tokens of a sequence up to before `end`, for which it has the blocks."""
        start = sequence.num_computed_tokens
        self.num_tokens_left -= end - start
        self.sequences.append(sequence)
        self.chunks.append(
            SequenceChunk(
                sequence_id=sequence.sequence_id,
                start=start,
                token_ids=tuple(sequence.token_ids[start:end]),
                block_table=tuple(sequence.block_table),
                samples=end == sequence.num_tokens,
            )
        )


class Scheduler:
    """The queue of the waiting, the running, and the memory that they share."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_batch_tokens: int,
        max_sequences: int,
        encoder_bytes_per_token: int,
        encoder_cache_bytes: int,
        prefix_caching: bool,
    ) -> None:
        """
        Raises:
            ValueError: the blocks do not hold a sequence that fills the context window, or a step is allowed nothing.
        """
        if max_model_len > num_blocks * block_size:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens hold no sequence of {max_model_len} tokens")
        if max_batch_tokens < 1 or max_sequences < 1:
            raise ValueError("a step must be allowed at least one token of one sequence")
        self.block_pool = BlockPool(num_blocks)
        self.encoder_cache = EncoderCache(
            bytes_per_token=encoder_bytes_per_token,
            capacity_bytes=max(encoder_cache_bytes, max_model_len * encoder_bytes_per_token),
        )
        self._prefix_cache = PrefixCache(pool=self.block_pool, block_size=block_size, enabled=prefix_caching)
        self._block_size = block_size
        self._max_batch_tokens = max_batch_tokens
        # Each running sequence can have a token in each step.
        self._max_sequences = min(max_sequences, max_batch_tokens)
        # Both in the order of rank.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._ended: list[int] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        """The next plan would hold something."""
        return bool(self._waiting or self._running or self._ended or self.encoder_cache.has_evictions)

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Frees all that a sequence holds, wherever it is; the next plan tells the runner."""
        _discard(self._running, sequence)
        _discard(self._waiting, sequence)
        self._free(sequence)
        if sequence.started:
            self._ended.append(sequence.sequence_id)

    def plan(self) -> Scheduled:
        """Decides the next step. Exactly one of `complete` and `fail` is to follow once it was executed."""
        draft = _Draft(
            num_tokens_left=self._max_batch_tokens,
            num_decodes_left=sum(sequence.num_uncomputed_tokens == 1 for sequence in self._running),
        )
        self._continue_running(draft)
        self._admit_waiting(draft)
        encode, evicted = self.encoder_cache.decide()
        ended, self._ended = tuple(self._ended), []
        plan = StepPlan(
            ended=ended, started=tuple(draft.started), evicted=evicted, encode=encode, chunks=tuple(draft.chunks)
        )
        return Scheduled(
            plan=plan,
            sequences=tuple(draft.sequences),
            num_cached_tokens=draft.num_cached_tokens,
            num_preemptions=draft.num_preemptions,
        )

    def complete(self, scheduled: Scheduled) -> None:
        """Accounts for an executed step: its tokens are computed, and the blocks that they fill can be found."""
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True):
            sequence.num_computed_tokens = chunk.start + len(chunk.token_ids)
            self._prefix_cache.publish(sequence, first_token=chunk.start)
            self.encoder_cache.advance(sequence, first_token=chunk.start)

    def fail(self, scheduled: Scheduled) -> None:
        """Accounts for a step that failed: nothing of it counts, and its sequences are removed."""
        for sequence in scheduled.sequences:
            self.remove(sequence)
        plan = scheduled.plan
        # Nobody knows how far the runner came, so it is told again what to forget. Not where forgetting was all that it
        # had to do and failed at: that would never end.
        if plan.chunks:
            self._ended += plan.ended
            self.encoder_cache.fail(encoded=(item.key for item in plan.encode), evicted=plan.evicted)

    def _continue_running(self, draft: _Draft) -> None:
        index = 0
        while index < len(self._running):  # preemption shortens the list from its end
            sequence = self._running[index]
            draft.num_decodes_left -= sequence.num_uncomputed_tokens == 1
            start = sequence.num_computed_tokens
            end = self.encoder_cache.reach(sequence, start, draft.end_for(sequence, start))
            if end > start and self._make_room(sequence, end, draft):
                self._extend_table(sequence, end)
                draft.add(sequence, end)
            index += 1

    def _make_room(self, sequence: Sequence, end: int, draft: _Draft) -> bool:
        """Preempts from the largest rank down until blocks for the tokens before `end` are free.

        False if the sequence itself had to go.
        """
        while self._num_missing_blocks(sequence, end) > self.block_pool.num_free:
            victim = self._running.pop()
            self._free(victim)
            self.add(victim)
            draft.num_preemptions += 1
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, draft: _Draft) -> None:
        while self._waiting and len(self._running) < self._max_sequences:
            sequence = self._waiting[0]
            matched = self._prefix_cache.match(sequence)
            if not self._fits(sequence, matched):
                return
            start = len(matched) * self._block_size
            end = self.encoder_cache.reach(sequence, start, draft.end_for(sequence, start))
            if end <= start:
                return
            self._admit(sequence, matched, draft)
            self._extend_table(sequence, end)
            draft.add(sequence, end)

    def _fits(self, sequence: Sequence, matched: Many[int]) -> bool:
        """Blocks for all tokens of a waiting sequence are free.

        Those for its first chunk would do, but a prompt that is begun only to be preempted is work for nothing. For the
        same reason who was preempted does not return at once: what it gave up is less than what it needs.
        """
        num_revived = sum(self.block_pool.is_free(block_id) for block_id in matched)
        num_wanted = self._num_missing_blocks(sequence, sequence.num_tokens) - len(matched) + num_revived
        return num_wanted <= self.block_pool.num_free

    def _admit(self, sequence: Sequence, matched: list[int], draft: _Draft) -> None:
        for block_id in matched:
            self.block_pool.retain(block_id)
        sequence.block_table = matched
        sequence.num_computed_tokens = len(matched) * self._block_size
        del self._waiting[0]
        insort(self._running, sequence, key=_rank)
        if not sequence.started:
            sequence.started = True
            sequence.num_cached_tokens = sequence.num_computed_tokens
            draft.num_cached_tokens += sequence.num_cached_tokens
            draft.started.append(_start_of(sequence))

    def _num_missing_blocks(self, sequence: Sequence, end: int) -> int:
        return -(-end // self._block_size) - len(sequence.block_table)

    def _extend_table(self, sequence: Sequence, end: int) -> None:
        for _ in range(self._num_missing_blocks(sequence, end)):
            sequence.block_table.append(self.block_pool.allocate())

    def _free(self, sequence: Sequence) -> None:
        # Backwards: of blocks without use the tail of a prompt, which fewer share, is to be evicted before its head.
        for block_id in reversed(sequence.block_table):
            self.block_pool.release(block_id)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        self.encoder_cache.release(sequence)


def _start_of(sequence: Sequence) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence.sequence_id,
        prompt_token_ids=tuple(sequence.token_ids[: sequence.num_prompt_tokens]),
        spans=sequence.spans,
        sampling=sequence.sampling,
    )


def _discard(queue: list[Sequence], sequence: Sequence) -> None:
    """Takes a sequence out of a queue in the order of rank, if it is in it."""
    index = bisect_left(queue, sequence.rank, key=_rank)
    if index < len(queue) and queue[index] is sequence:
        del queue[index]
