"""What the scheduler knows between steps: the sequences, the memory of those that run, and the budgets of a step."""

from bisect import bisect_left, insort
from collections.abc import Sequence as Many
from operator import attrgetter

from glimpse.engine.core.draft_budget import DraftBudget
from glimpse.engine.core.fairness.decode_turns import DecodeTurns
from glimpse.engine.core.fairness.fair_queue import FairQueue
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.memory.block_pool import BlockPool, BlockTables
from glimpse.engine.core.memory.encoder_cache import EncoderCache
from glimpse.engine.core.memory.prefix_cache import PrefixCache
from glimpse.engine.core.memory.state_table import StateTable
from glimpse.engine.core.prefill_budget import PrefillBudget
from glimpse.engine.core.sequence import RUNNING, Sequence

_priority_key = attrgetter("priority_key")
_MAX_EXPECTED = 16
"""Sequences that count: many of a flood end before the last begin."""
_NUM_PACED_TOKENS = 128
"""Tokens of an answer after which another may have sent what comes meanwhile: people share addresses."""


class SchedulerState:
    """The waiting and the running sequences, the memory that they share, and budgets that follow from recent steps."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.block_size = limits.block_size
        self._max_running = limits.max_running
        self.block_pool = BlockPool(limits.num_blocks)
        self.encoder_cache = EncoderCache(
            bytes_per_row=limits.encoder_bytes_per_row,
            capacity_bytes=max(limits.encoder_cache_bytes, limits.max_model_len * limits.encoder_bytes_per_row),
        )
        self.block_tables = BlockTables(self.block_pool, block_size=limits.block_size)
        window = limits.sliding_window
        sliding_pool = None if window is None else BlockPool(limits.num_sliding_blocks)
        self.sliding_tables = None
        """The tables of sliding layers with blocks of their own; None without any."""
        if sliding_pool is not None:
            self.sliding_tables = BlockTables(
                sliding_pool, block_size=limits.block_size, window=window, max_new_tokens=limits.max_batch_tokens
            )
        self.tables = (self.block_tables,) if self.sliding_tables is None else (self.block_tables, self.sliding_tables)
        """The tables of each kind."""
        state_pool = BlockPool(limits.num_states) if limits.num_states else None
        self.prefix_cache = PrefixCache(
            pool=self.block_pool,
            block_size=limits.block_size,
            enabled=limits.prefix_caching,
            snapshots=state_pool,
            sliding_pool=sliding_pool,
            window=window,
        )
        self.states = None
        """The states of running sequences; None if the model's layers keep none."""
        if state_pool is not None:
            self.states = StateTable(block_size=limits.block_size, prefix_cache=self.prefix_cache, pool=state_pool)
        self.queue = FairQueue()
        """Sequences that wait, and the counters of all clients."""
        self.running: list[Sequence] = []
        """Sorted by priority key."""
        self.in_runner = set[Sequence]()
        """Sequences that the runner knows."""
        self.prefill_budget = PrefillBudget(max_slowdown=limits.max_decode_slowdown, uses_gpu=limits.uses_gpu)
        self.draft_budget = DraftBudget(
            max_draft_tokens=limits.max_draft_tokens,
            is_adaptive=limits.adaptive_drafts,
            uses_mtp=limits.uses_mtp,
            max_states=limits.num_draft_states,
        )
        self.decode_turns = DecodeTurns()

    @property
    def num_used_blocks(self) -> int:
        """See `StepStats`."""
        num_used, sliding = self.block_pool.num_used, self.sliding_tables
        if sliding is None:
            return num_used
        return max(num_used, self.block_pool.num_blocks * sliding.num_used // (sliding.num_used + sliding.num_free))

    @property
    def num_expected_decodes(self) -> int:
        """How many sequences of one client decode once all have a place: its pace then is its pace before. With several
        clients, or beside a long answer, 0: none is slowed down by what another sends."""
        if not self.queue.has_one_client or any(each.num_generated > _NUM_PACED_TOKENS for each in self.running):
            return 0
        return min(len(self.running) + self.queue.num_waiting, self._max_running, _MAX_EXPECTED)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self.queue.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence in any state, and frees all that it holds."""
        was_running = sequence.status is RUNNING
        sequence.end()
        if was_running:
            self._discard(sequence)
        self.queue.remove(sequence, was_running=was_running)
        self._release(sequence)
        for table in (self.prefix_cache, self.draft_budget, self.decode_turns):
            table.forget(sequence)

    def fits(self, sequence: Sequence, matched: Many[int]) -> bool:
        """Blocks for all tokens of a waiting sequence are free, and a state, if layers keep one.

        Blocks for its first chunk would be enough to begin, but the work is lost if the prompt is preempted. It also
        keeps a preempted sequence from returning at once: it freed fewer blocks than it needs.
        """
        if self.states is not None and not self.states.has_free:
            return False
        return all(num <= tables.num_free for tables, num in self.wanted_blocks(sequence, matched).items())

    def wanted_blocks(self, sequence: Sequence, matched: Many[int]) -> dict[BlockTables, int]:
        """Returns how many free blocks of each kind a waiting sequence takes. `matched`: as for `admit`."""
        wanted = {self.block_tables: self.block_tables.num_wanted(sequence, matched)}
        if self.sliding_tables is not None:
            window_blocks = self.prefix_cache.window_blocks(sequence, len(matched))
            wanted[self.sliding_tables] = self.sliding_tables.num_wanted(sequence, window_blocks)
        return wanted

    def admit(self, sequence: Sequence, matched: list[int]) -> None:
        """Makes a waiting sequence run. `matched`: the blocks of its computed prefix. It must fit."""
        self.block_tables.begin(sequence, matched)
        if self.sliding_tables is not None:
            self.sliding_tables.begin(sequence, self.prefix_cache.window_blocks(sequence, len(matched)))
        if self.states is not None:
            self.states.begin(sequence, len(matched))
        sequence.run(len(matched) * self.block_size)
        self.queue.start(sequence)
        insort(self.running, sequence, key=_priority_key)

    def preempt(self, sequence: Sequence, *, num_protected_tokens: int = 0) -> None:
        """Frees what a running sequence holds, and queues it again."""
        sequence.preempt(num_protected_tokens=num_protected_tokens)
        self._discard(sequence)
        self._release(sequence)
        self.queue.stop(sequence)

    def _discard(self, sequence: Sequence) -> None:
        del self.running[bisect_left(self.running, sequence.priority_key, key=_priority_key)]

    def _release(self, sequence: Sequence) -> None:
        for tables in self.tables:
            tables.release(sequence)
        if self.states is not None:
            self.states.release(sequence)
        self.encoder_cache.release(sequence)
