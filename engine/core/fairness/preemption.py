"""Chooses which running sequences give up their places and blocks to others. Computes only; the scheduler preempts.

A waiting sequence displaces running ones of a client that has more than its share, or of a request of its own client
that has: those who give must keep at least as much as the taker then has. So nothing is displaced back and forth, and
with a single client and one completion per request nothing is displaced at all. Clients in the background give way to
all others, and others never to them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from glimpse.engine.core.fairness.flow import Client, Flow
from glimpse.engine.core.memory.block_pool import BlockTables
from glimpse.engine.core.sequence import Sequence

_Group = TypeVar("_Group", Client, Flow)

NUM_PROTECTED_TOKENS = 64
"""Tokens that a displaced sequence generates before it can be displaced again."""
NUM_SLICE_TOKENS = 256
"""A client of which nothing runs displaces any client that was served this many tokens more, because there can be more
clients than places. Longer sequences are given more, since they are computed again."""
_SLICE_SHARE = 4
"""A sequence of N tokens is not displaced in this way for a lead of less than N / 4 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What a waiting sequence needs and does not find."""

    lacks_place: bool
    """All places are taken by running sequences."""
    num_blocks: Mapping[BlockTables, int]
    """Blocks of each kind that are missing; none if this is not positive."""
    num_wanted_blocks: int
    """Blocks that it needs altogether."""

    @property
    def exists(self) -> bool:
        return self.lacks_place or self.lacks_blocks

    @property
    def lacks_blocks(self) -> bool:
        return any(num > 0 for num in self.num_blocks.values())


def displaced_by(
    sequence: Sequence, running: Iterable[Sequence], shortage: Shortage, block_tables: BlockTables
) -> list[Sequence]:
    """Returns the running sequences that must give way to a waiting one; none if it has to wait."""
    candidates = [each for each in running if _may_be_displaced(each, sequence)]
    holdings = _Holdings(running if shortage.lacks_blocks else (), block_tables)
    displaced: list[Sequence] = []
    left = shortage
    while left.exists:
        fair = [each for each in candidates if holdings.should_preempt(each, sequence, shortage)]
        if not fair:
            return []
        victim = max(fair, key=lambda each: holdings.excess_key(each, sequence))
        candidates.remove(victim)
        holdings.take(victim)
        displaced.append(victim)
        num_blocks = {tables: num - tables.num_freed(victim) for tables, num in left.num_blocks.items()}
        left = replace(left, lacks_place=False, num_blocks=num_blocks)
    return displaced


def preempted_for_blocks(
    running: Iterable[Sequence], candidates: Iterable[Sequence], block_tables: BlockTables
) -> Sequence:
    """Returns the sequence that gives up its blocks when a running one finds none.

    It is one of the client that holds the most blocks, in the background if there is one; of that client's requests,
    the one with the most running sequences; and of those, the sequence with the largest priority key.
    """
    holdings = _Holdings(running, block_tables)

    def excess(sequence: Sequence) -> tuple[object, ...]:
        client = sequence.flow.client
        return (client.is_background, holdings.client_blocks[client], *_excess_in_client(sequence))

    return max(candidates, key=excess)


def _may_be_displaced(running: Sequence, waiting: Sequence) -> bool:
    flow, own = running.flow, waiting.flow
    if flow.client is own.client and (flow is own or running.request.priority < waiting.request.priority):
        return False
    yields = flow.client.is_background and not own.client.is_background
    return (yields or running.num_tokens >= running.num_protected_tokens) and not running.is_complete


def _excess_in_client(sequence: Sequence) -> tuple[int, tuple[int, int]]:
    return (sequence.flow.num_running, sequence.priority_key)


class _Holdings:
    """Places and blocks of clients and flows, less those that have been taken away."""

    def __init__(self, running: Iterable[Sequence], block_tables: BlockTables) -> None:
        """`running`: the sequences whose blocks count."""
        self._block_tables = block_tables
        self.client_blocks = Counter[Client]()
        self._flow_blocks = Counter[Flow]()
        self._taken = Counter[Client | Flow]()
        for sequence in running:
            num_blocks = block_tables.num_held(sequence)
            self.client_blocks[sequence.flow.client] += num_blocks
            self._flow_blocks[sequence.flow] += num_blocks

    def take(self, sequence: Sequence) -> None:
        """Counts a sequence as displaced."""
        flow, num_blocks = sequence.flow, self._block_tables.num_held(sequence)
        self._taken[flow] += 1
        self._taken[flow.client] += 1
        self._flow_blocks[flow] -= num_blocks
        self.client_blocks[flow.client] -= num_blocks

    def should_preempt(self, running: Sequence, waiting: Sequence, shortage: Shortage) -> bool:
        """Whether it is fair to displace a running sequence for a waiting one."""
        giver, taker = running.flow.client, waiting.flow.client
        if giver is taker:
            return self._keeps_enough(running, running.flow, waiting.flow, self._flow_blocks, shortage)
        if giver.is_background is not taker.is_background:
            return giver.is_background
        if giver.service < taker.service:
            return False
        if taker.num_running == 0 and giver.service - taker.service >= _slice_tokens(running):
            return True
        return self._keeps_enough(running, giver, taker, self.client_blocks, shortage)

    def excess_key(self, running: Sequence, waiting: Sequence) -> tuple[object, ...]:
        """Sorts sequences by how much their client or flow has; the largest is displaced first."""
        client = running.flow.client
        num_running = client.num_running - self._taken[client]
        is_other = client is not waiting.flow.client
        return (client.is_background, is_other, self.client_blocks[client], num_running, *_excess_in_client(running))

    def _keeps_enough(
        self, running: Sequence, giver: _Group, taker: _Group, blocks: Counter[_Group], shortage: Shortage
    ) -> bool:
        """After the exchange the giver has no less than the taker, of whatever is short."""
        if shortage.lacks_place and giver.num_running - self._taken[giver] - 1 < taker.num_running + 1:
            return False
        if not shortage.lacks_blocks:
            return True
        return blocks[giver] - self._block_tables.num_held(running) >= blocks[taker] + shortage.num_wanted_blocks


def _slice_tokens(sequence: Sequence) -> int:
    return max(NUM_SLICE_TOKENS, sequence.num_tokens // _SLICE_SHARE)
