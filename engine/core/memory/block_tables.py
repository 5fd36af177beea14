"""The KV blocks of each sequence: how many it needs, holds and would free."""

from collections.abc import Sequence as Many

from glimpse.engine.core.memory.block_pool import BlockPool
from glimpse.engine.core.sequence import Sequence


class BlockTables:
    """The block tables of sequences, filled from one pool."""

    def __init__(self, pool: BlockPool, *, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def num_missing(self, sequence: Sequence, end: int) -> int:
        """Returns how many blocks a sequence lacks for its tokens before `end`."""
        return -(-end // self._block_size) - len(sequence.block_table)

    def num_wanted(self, sequence: Sequence, matched: Many[int]) -> int:
        """Returns how many free blocks all tokens of a waiting sequence take, if it shares those in `matched`."""
        num_revived = sum(self._pool.is_free(block_id) for block_id in matched)
        return self.num_missing(sequence, sequence.num_tokens) - len(matched) + num_revived

    def num_freed(self, sequence: Sequence) -> int:
        """Returns how many blocks only this sequence holds."""
        return sum(not self._pool.is_shared(block_id) for block_id in sequence.block_table)

    def begin(self, sequence: Sequence, matched: list[int]) -> None:
        """Gives a sequence without blocks those that hold its computed prefix."""
        for block_id in matched:
            self._pool.retain(block_id)
        sequence.block_table = matched
        sequence.num_computed_tokens = len(matched) * self._block_size

    def extend(self, sequence: Sequence, end: int) -> None:
        """Gives a sequence the blocks that it lacks for its tokens before `end`. They must be free.

        Plans refer to the list of its blocks: it is only ever appended to, until another one replaces it.
        """
        block_table = sequence.block_table
        while end > len(block_table) * self._block_size:
            block_table.append(self._pool.allocate())

    def release(self, sequence: Sequence) -> None:
        """Frees all blocks of a sequence. Nothing of it is computed any more."""
        # In reverse: the tail of a prompt is shared by fewer sequences, so it should be evicted before its head.
        for block_id in reversed(sequence.block_table):
            self._pool.release(block_id)
        sequence.block_table = []
        sequence.num_computed_tokens = 0
