"""Decides what each step computes: who runs, how many tokens of each, in which blocks, and who must give way.

The sequence of the smallest rank (priority, then arrival) goes first. Running sequences are continued before waiting
ones are admitted; when blocks run out, the running sequence of the largest rank gives up its own and waits again, to be
computed anew. So whoever ranks first moves on, and everyone's turn comes. Beside answers that run, a step takes on only
so much of the prompts as their pace allows. Knows no model, no tensors and no clock.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from collections.abc import Sequence as Many
from itertools import takewhile
from operator import attrgetter

from glimpse.engine.plan import StepPlan
from glimpse.engine.scheduling.block_pool import BlockPool
from glimpse.engine.scheduling.encoder_cache import EncoderCache
from glimpse.engine.scheduling.prefill_budget import NUM_FREE_TOKENS, PrefillBudget, StepWork
from glimpse.engine.scheduling.prefix_cache import PrefixCache
from glimpse.engine.scheduling.sequence import Sequence
from glimpse.engine.scheduling.step_builder import Scheduled, StepBuilder

_priority_key = attrgetter("priority_key")


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
        max_draft_tokens: int = 0,
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
        self._prefill_budget = PrefillBudget(max_slowdown=max_decode_slowdown)
        self._max_guesses = max_draft_tokens
        self._block_size = block_size
        self._max_batch_tokens = max_batch_tokens
        # Each running sequence can have a token in each step.
        self._max_sequences = min(max_sequences, max_batch_tokens)
        # Both in the order of rank.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._ended: dict[int, None] = {}

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
        insort(self._waiting, sequence, key=_priority_key)

    def remove(self, sequence: Sequence) -> None:
        """Frees all that a sequence holds, wherever it is; the next plan tells the runner."""
        _discard(self._running, sequence)
        _discard(self._waiting, sequence)
        self._free(sequence)
        if sequence.started:
            self._ended[sequence.sequence_id] = None

    def plan(self) -> Scheduled:
        """Decides the next step.

        `complete` or `fail` is to follow before the next one is planned. Steps are executed in the order of their
        plans: so blocks that are free here may still be written, by a step under way and for a sequence that is gone,
        for whoever gets them writes later.
        """
        builder = self._begin_step()
        self._continue_running(builder)
        self._admit_waiting(builder)
        num_media_tokens = self.encoder_cache.num_tokens_to_encode
        encode, evicted = self.encoder_cache.decide()
        ended, self._ended = tuple(self._ended), {}
        plan = StepPlan(
            ended=ended, started=tuple(builder.started), evicted=evicted, encode=encode, chunks=tuple(builder.chunks)
        )
        return Scheduled(
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

    def complete(self, scheduled: Scheduled) -> None:
        """Accounts for a step: its tokens are computed, or will be before any step planned from now on.

        Its full blocks can be found. The sequences have the guesses that came true, and not yet the tokens sampled
        beyond them.
        """
        for sequence, chunk in zip(scheduled.sequences, scheduled.plan.chunks, strict=True):
            # Of the guesses those count that came true: the sequence has them now.
            sequence.num_computed_tokens = min(chunk.start + len(chunk.token_ids), sequence.num_tokens)
            self._prefix_cache.publish(sequence, first_token=chunk.start)
            self.encoder_cache.advance(sequence, first_token=chunk.start)

    def observe(self, scheduled: Scheduled, seconds: float) -> None:
        """Takes note of how long a step took."""
        # For a step without samples a runner need not wait until its device has computed it.
        if any(chunk.samples for chunk in scheduled.plan.chunks):
            self._prefill_budget.observe(scheduled.work, seconds)

    def fail(self, scheduled: Scheduled, blamed: Collection[Sequence]) -> None:
        """Accounts for a step that failed: nothing of it counts.

        Of its sequences the blamed are removed. The others are begun anew in the runner, where nobody knows how far it
        came with them, and compute the same once more.
        """
        for sequence in scheduled.sequences:
            if sequence in blamed:
                self.remove(sequence)
            else:
                self._begin_anew(sequence)
        # So is the runner told again what to forget. Not where forgetting was all that it had to do and failed at: that
        # would never end.
        plan, work = scheduled.plan, scheduled.work
        if work.num_decodes or work.num_prompt_tokens:
            self._ended |= dict.fromkeys(plan.ended)
            self.encoder_cache.fail(encoded=(item.key for item in plan.encode), evicted=plan.evicted)

    def revoke(self, scheduled: Scheduled, ahead: Scheduled) -> None:
        """Takes `complete` back for a step that failed later, and with it the one planned since; `fail` is to follow.

        The sequences of both wait again: their blocks may hold nothing, and some may share those of others.
        """
        for chunk in scheduled.plan.chunks:
            self._prefix_cache.withdraw(chunk.block_table, chunk.start, chunk.start + len(chunk.token_ids))
        for sequence in (*scheduled.sequences, *ahead.sequences):
            sequence.drop_pending_token()
            if _discard(self._running, sequence):
                self._free(sequence)
                self.add(sequence)
        self.fail(ahead, blamed=())

    def to_blame(self, scheduled: Scheduled) -> Sequence | None:
        """Whose work to give up where a step was too large: the last prompt that it took on, else the last sequence."""
        pairs = zip(scheduled.sequences, scheduled.plan.chunks, strict=True)
        prompts = [sequence for sequence, chunk in pairs if len(chunk.token_ids) - chunk.num_draft_tokens > 1]
        return max(prompts or scheduled.sequences, key=_priority_key, default=None)

    def _begin_anew(self, sequence: Sequence) -> None:
        self.encoder_cache.release(sequence)
        if sequence.started:
            sequence.started = False
            self._ended[sequence.sequence_id] = None

    def _begin_step(self) -> StepBuilder:
        num_decodes = sum(sequence.decodes for sequence in self._running)
        return StepBuilder(
            num_tokens_left=self._max_batch_tokens,
            num_decodes_left=num_decodes,
            num_prompt_tokens_left=self._prefill_budget.num_prompt_tokens if num_decodes else self._max_batch_tokens,
            media_weight=self._prefill_budget.media_weight,
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
        end = self._reach(sequence, sequence.num_computed_tokens, 1 if decodes else builder.num_free_tokens, builder)
        if end > sequence.num_computed_tokens and self._make_room(sequence, end, builder):
            guesses = self._guess(sequence, builder) if decodes else ()
            self._plan_until(sequence, end, builder, guesses=guesses, counts=not decodes)

    def _reach(self, sequence: Sequence, start: int, num_tokens: int, builder: StepBuilder) -> int:
        """Where the tokens of a sequence from `start` on end, of at most so many, that the step can take."""
        end = min(sequence.num_tokens, start + num_tokens)
        num_before = self.encoder_cache.num_tokens_to_encode
        num_left = builder.num_prompt_tokens_left - (end - start)
        end = self.encoder_cache.reach(sequence, start, end, max_more_tokens=int(num_left / builder.media_weight))
        num_encoded = self.encoder_cache.num_tokens_to_encode - num_before
        builder.num_prompt_tokens_left -= int(num_encoded * builder.media_weight)
        return end

    def _guess(self, sequence: Sequence, builder: StepBuilder) -> tuple[int, ...]:
        """Guesses for a sequence that decodes, as far as step, blocks and answer have room, and before any end."""
        num_left = min(builder.num_draft_tokens_left, builder.num_tokens_left - builder.num_decodes_left - 1)
        num_wanted = min(self._max_guesses, num_left, sequence.max_tokens - sequence.num_generated - 1)
        if num_wanted < 1 or not sequence.num_generated:
            return ()
        guesses = sequence.proposer.guess(sequence.token_ids, num_wanted)
        num_blocks = self._num_missing_blocks(sequence, sequence.num_tokens + len(guesses))
        if num_blocks + builder.num_decodes_left > self.block_pool.num_free:
            return ()  # those that decode after it may want a block each: nobody gives way to a guess
        return tuple(takewhile(lambda token_id: token_id not in sequence.end_token_ids, guesses))

    def _plan_until(
        self, sequence: Sequence, end: int, builder: StepBuilder, *, guesses: tuple[int, ...] = (), counts: bool
    ) -> None:
        """Plans the uncomputed tokens of a running sequence before `end`; they count as a prompt's, or not."""
        num_tokens = end - sequence.num_computed_tokens
        self._extend_table(sequence, end + len(guesses))
        builder.add(sequence, end, guesses)
        num_named = min(end, sequence.num_known_tokens)
        builder.computing |= self._prefix_cache.names(sequence, sequence.num_computed_tokens, num_named)
        if counts:
            builder.num_prompt_tokens += num_tokens
            builder.num_prompt_tokens_left -= num_tokens

    def _make_room(self, sequence: Sequence, end: int, builder: StepBuilder) -> bool:
        """Preempts from the largest rank down until blocks for the tokens before `end` are free.

        False if the sequence itself had to go.
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
        """Admits in the order of rank until one does not fit.

        Who needs a block next that this very step computes steps aside, a place kept for it, and finds it in the next.
        """
        num_aside = 0
        while num_aside < len(self._waiting) and len(self._running) + num_aside < self._max_sequences:
            sequence = self._waiting[num_aside]
            if sequence.is_complete:
                num_aside += 1
                continue
            matched = self._prefix_cache.match(sequence)
            if self._prefix_cache.next_hash(sequence, len(matched)) in builder.computing:
                num_aside += 1
                continue
            if not self._fits(sequence, matched):
                return
            start = len(matched) * self._block_size
            end = self._reach(sequence, start, builder.num_free_tokens, builder)
            if end <= start:
                return
            self._admit(sequence, matched, builder)
            self._plan_until(sequence, end, builder, counts=True)

    def _fits(self, sequence: Sequence, matched: Many[int]) -> bool:
        """Blocks for all tokens of a waiting sequence are free.

        Those for its first chunk would do, but a prompt that is begun only to be preempted is work for nothing. For the
        same reason who was preempted does not return at once: what it gave up is less than what it needs.
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
        # Backwards: of blocks without use the tail of a prompt, which fewer share, is to be evicted before its head.
        for block_id in reversed(sequence.block_table):
            self.block_pool.release(block_id)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
        self.encoder_cache.release(sequence)


def _discard(queue: list[Sequence], sequence: Sequence) -> bool:
    """Takes a sequence out of a queue in the order of rank; False if it is not in it."""
    index = bisect_left(queue, sequence.priority_key, key=_priority_key)
    if index == len(queue) or queue[index] is not sequence:
        return False
    del queue[index]
    return True
