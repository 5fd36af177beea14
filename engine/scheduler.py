"""Decides what each step computes: who runs, how many tokens of each, in which blocks, and who must give way.

The sequence of the smallest rank (priority, then arrival) goes first. Running sequences are continued before waiting
ones are admitted; when blocks run out, the running sequence of the largest rank gives up its own and waits again, to be
computed anew. So whoever ranks first moves on, and everyone's turn comes. Beside answers that run, a step takes on only
so much of the prompts as their pace allows. Knows no model, no tensors and no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

from engine.block_pool import BlockPool
from engine.encoder_cache import EncoderCache
from engine.pace import NUM_FREE_TOKENS, Pace, StepWork
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
    work: StepWork


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A plan in the making."""

    num_tokens_left: int
    """What the step may still compute."""
    num_decodes_left: int
    """Running sequences not planned yet that want a single token, which is kept for them."""
    num_prompt_tokens_left: int
    """What the step may still take on beside decodes, so that these keep their pace; may be overdrawn by a medium."""
    media_weight: float
    """What encoding one token of a medium counts for in `num_prompt_tokens_left`."""
    num_guesses_left: int
    """Guesses that the step may still check."""
    num_prompt_tokens: int = 0
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    chunks: list[SequenceChunk] = field(default_factory=list[SequenceChunk])
    started: list[SequenceStart] = field(default_factory=list[SequenceStart])
    computing: set[bytes] = field(default_factory=set[bytes])
    """Names of the blocks that the step completes."""
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_free_tokens(self) -> int:
        """Prompt tokens that the step can still take on."""
        return max(0, min(self.num_tokens_left - self.num_decodes_left, self.num_prompt_tokens_left))

    def add(self, sequence: Sequence, end: int, guesses: tuple[int, ...]) -> None:
        """Plans the uncomputed tokens of a sequence before `end`, and the guesses, for which it has the blocks."""
        start = sequence.num_computed_tokens
        self.num_tokens_left -= end - start + len(guesses)
        self.num_guesses_left -= len(guesses)
        self.sequences.append(sequence)
        self.chunks.append(
            SequenceChunk(
                sequence_id=sequence.sequence_id,
                start=start,
                token_ids=(*sequence.token_ids[start:end], *guesses),
                block_table=tuple(sequence.block_table),
                samples=end == sequence.num_tokens,
                num_guesses=len(guesses),
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
        max_decode_slowdown: float,
        max_guesses: int = 0,
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
        self._pace = Pace(max_slowdown=max_decode_slowdown)
        self._max_guesses = max_guesses
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
        draft = self._begin_draft()
        self._continue_running(draft)
        self._admit_waiting(draft)
        num_media_tokens = self.encoder_cache.num_tokens_to_encode
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
            work=StepWork(
                num_decodes=plan.num_tokens - draft.num_prompt_tokens,
                num_prompt_tokens=draft.num_prompt_tokens,
                num_media_tokens=num_media_tokens,
            ),
        )

    def complete(self, scheduled: Scheduled, *, seconds: float) -> None:
        """Accounts for a step executed in so many seconds: its tokens are computed, its full blocks can be found.

        The sequences have the guesses that came true, and not yet the tokens sampled beyond them.
        """
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True):
            # Of the guesses those count that came true: the sequence has them now.
            sequence.num_computed_tokens = min(chunk.start + len(chunk.token_ids), sequence.num_tokens)
            self._prefix_cache.publish(sequence, first_token=chunk.start)
            self.encoder_cache.advance(sequence, first_token=chunk.start)
        # For a step without samples a runner need not wait until its device has computed it.
        if any(chunk.samples for chunk in scheduled.plan.chunks):
            self._pace.observe(scheduled.work, seconds)

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

    def _begin_draft(self) -> _Draft:
        num_decodes = sum(sequence.num_uncomputed_tokens == 1 for sequence in self._running)
        return _Draft(
            num_tokens_left=self._max_batch_tokens,
            num_decodes_left=num_decodes,
            num_prompt_tokens_left=self._pace.num_prompt_tokens if num_decodes else self._max_batch_tokens,
            media_weight=self._pace.media_weight,
            num_guesses_left=max(0, NUM_FREE_TOKENS - num_decodes),
        )

    def _continue_running(self, draft: _Draft) -> None:
        index = 0
        while index < len(self._running):  # preemption shortens the list from its end
            sequence = self._running[index]
            decodes = sequence.num_uncomputed_tokens == 1
            draft.num_decodes_left -= decodes
            end = self._reach(sequence, sequence.num_computed_tokens, 1 if decodes else draft.num_free_tokens, draft)
            if end > sequence.num_computed_tokens and self._make_room(sequence, end, draft):
                guesses = self._guess(sequence, draft) if decodes else ()
                self._plan_until(sequence, end, draft, guesses=guesses, counts=not decodes)
            index += 1

    def _reach(self, sequence: Sequence, start: int, num_tokens: int, draft: _Draft) -> int:
        """Where the tokens of a sequence from `start` on end, of at most so many, that the step can take."""
        end = min(sequence.num_tokens, start + num_tokens)
        num_before = self.encoder_cache.num_tokens_to_encode
        num_left = draft.num_prompt_tokens_left - (end - start)
        end = self.encoder_cache.reach(sequence, start, end, max_more_tokens=int(num_left / draft.media_weight))
        num_encoded = self.encoder_cache.num_tokens_to_encode - num_before
        draft.num_prompt_tokens_left -= int(num_encoded * draft.media_weight)
        return end

    def _guess(self, sequence: Sequence, draft: _Draft) -> tuple[int, ...]:
        """Guesses for a sequence that decodes, as far as step, blocks and answer have room, and before any end."""
        num_left = min(draft.num_guesses_left, draft.num_tokens_left - draft.num_decodes_left - 1)
        num_wanted = min(self._max_guesses, num_left, sequence.max_tokens - sequence.num_generated - 1)
        if num_wanted < 1 or not sequence.num_generated:
            return ()
        guesses = sequence.guesser.guess(sequence.token_ids, num_wanted)
        num_blocks = self._num_missing_blocks(sequence, sequence.num_tokens + len(guesses))
        if num_blocks + draft.num_decodes_left > self.block_pool.num_free:
            return ()  # those that decode after it may want a block each: nobody gives way to a guess
        return tuple(takewhile(lambda token_id: token_id not in sequence.end_token_ids, guesses))

    def _plan_until(
        self, sequence: Sequence, end: int, draft: _Draft, *, guesses: tuple[int, ...] = (), counts: bool
    ) -> None:
        """Plans the uncomputed tokens of a running sequence before `end`; they count as a prompt's, or not."""
        num_tokens = end - sequence.num_computed_tokens
        self._extend_table(sequence, end + len(guesses))
        draft.add(sequence, end, guesses)
        draft.computing |= self._prefix_cache.names(sequence, sequence.num_computed_tokens, end)
        if counts:
            draft.num_prompt_tokens += num_tokens
            draft.num_prompt_tokens_left -= num_tokens

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
        """Admits in the order of rank until one does not fit.

        Who needs a block next that this very step computes steps aside, a place kept for it, and finds it in the next.
        """
        num_aside = 0
        while num_aside < len(self._waiting) and len(self._running) + num_aside < self._max_sequences:
            sequence = self._waiting[num_aside]
            matched = self._prefix_cache.match(sequence)
            if self._prefix_cache.next_name(sequence, len(matched)) in draft.computing:
                num_aside += 1
                continue
            if not self._fits(sequence, matched):
                return
            start = len(matched) * self._block_size
            end = self._reach(sequence, start, draft.num_free_tokens, draft)
            if end <= start:
                return
            self._admit(sequence, matched, draft)
            self._plan_until(sequence, end, draft, counts=True)

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
        _discard(self._waiting, sequence)
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
