"""Bookkeeping of KV blocks: who holds each, and which free blocks still have useful contents. Also of states.

Blocks are ids, and their contents opaque hashes. Every operation on a block takes constant time.
"""

from collections import OrderedDict
from collections.abc import Sequence as Many

from glimpse.engine.core.memory.sliding_window import SlidingWindow
from glimpse.engine.core.sequence import Sequence


class BlockPool:
    """Reference-counted blocks. A block registered under a hash can be found until it is allocated again."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        # In the order of allocation: blocks without a hash first, then the least recently used.
        self._free = OrderedDict[int, None].fromkeys(range(num_blocks))
        self._hash_of_block: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def is_free(self, block_id: int) -> bool:
        return self._num_holders[block_id] == 0

    def is_shared(self, block_id: int) -> bool:
        return self._num_holders[block_id] > 1

    def allocate(self) -> int:
        """Takes the free block that is least worth keeping, and evicts its contents.

        Raises:
            KeyError: no block is free.
        """
        block_id, _ = self._free.popitem(last=False)
        self.evict(block_id)
        self._num_holders[block_id] = 1
        return block_id

    def retain(self, block_id: int) -> None:
        """Adds a holder to a free or held block."""
        if self._num_holders[block_id] == 0:
            del self._free[block_id]
        self._num_holders[block_id] += 1

    def release(self, block_id: int) -> None:
        """Removes a holder. A block without holders is free; if it has a hash, it is the last to be allocated."""
        assert self._num_holders[block_id] > 0, f"block {block_id} is released but has no holder"
        self._num_holders[block_id] -= 1
        if self._num_holders[block_id] == 0:
            self._free[block_id] = None
            if self._hash_of_block[block_id] is None:
                self._free.move_to_end(block_id, last=False)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Makes a held block findable by the hash of its contents, unless another block has the same contents."""
        if block_hash not in self._block_of_hash and self._hash_of_block[block_id] is None:
            self._hash_of_block[block_id] = block_hash
            self._block_of_hash[block_hash] = block_id

    def evict(self, block_id: int) -> None:
        """Forgets the hash of a block, if it has one."""
        block_hash = self._hash_of_block[block_id]
        if block_hash is not None:
            del self._block_of_hash[block_hash]
            self._hash_of_block[block_id] = None

    def discard(self, block_id: int) -> None:
        """Evicts the contents of a free block, which is then the first to be allocated."""
        self.evict(block_id)
        self._free.move_to_end(block_id, last=False)

    def find(self, block_hash: bytes) -> int | None:
        """Returns the free or held block with these contents."""
        return self._block_of_hash.get(block_hash)


class BlockTables:
    """The block tables of the running sequences, filled from one pool.

    Those of sliding layers give blocks back that no later token attends to. Their ids stay in the tables, which
    attention reads from the window on.
    """

    def __init__(
        self, pool: BlockPool, *, block_size: int, window: SlidingWindow | None = None, max_new_tokens: int = 0
    ) -> None:
        """
        Args:
            window: The window of sliding layers. None: all blocks of a sequence are kept.
            max_new_tokens: The most tokens of a step; only with a window.
        """
        self._pool = pool
        self._block_size = block_size
        self._window = window
        self._max_new_tokens = max_new_tokens
        self._tables: dict[Sequence, list[int]] = {}  # ids of its blocks, in the order of its tokens
        self._firsts: dict[Sequence, int] = {}  # index of the first block that it holds; missing: 0

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self._pool.num_used

    def num_held(self, sequence: Sequence) -> int:
        """Returns how many blocks a running sequence has."""
        return len(self._held(sequence))

    def num_held_of(self, num_tokens: int) -> int:
        """Returns how many blocks a sequence has that decodes and has so many tokens."""
        return -(-num_tokens // self._block_size) if self._window is None else self._window.num_held(num_tokens)

    def num_missing(self, sequence: Sequence, end: int) -> int:
        """Returns how many blocks a running sequence lacks for its tokens before `end`."""
        return -(-end // self._block_size) - len(self._tables[sequence])

    def num_wanted(self, sequence: Sequence, matched: Many[int]) -> int:
        """Returns how many free blocks all tokens of a waiting sequence take, if it shares those in `matched`."""
        num_blocks = -(-sequence.num_tokens // self._block_size)
        if self._window is not None:
            first = self._window.first_block(len(matched) * self._block_size)
            matched = matched[first:]
            num_blocks = min(num_blocks - first, self._window.num_blocks(self._max_new_tokens))
        num_revived = sum(self._pool.is_free(block_id) for block_id in matched)
        return num_blocks - len(matched) + num_revived

    def num_freed(self, sequence: Sequence) -> int:
        """Returns how many blocks only this running sequence holds."""
        return sum(not self._pool.is_shared(block_id) for block_id in self._held(sequence))

    def begin(self, sequence: Sequence, matched: list[int]) -> None:
        """Gives a sequence without blocks those that hold its computed prefix. Ids before its window mean nothing."""
        self._tables[sequence] = matched
        if self._window is not None:
            self._firsts[sequence] = self._window.first_block(len(matched) * self._block_size)
        for block_id in self._held(sequence):
            self._pool.retain(block_id)

    def extend(self, sequence: Sequence, end: int) -> list[int]:
        """Gives a sequence the blocks that it lacks for its tokens before `end`. They must be free. Returns all it has.

        Plans refer to the list of its blocks: it is only ever appended to, until another one replaces it.
        """
        block_table = self._tables[sequence]
        while end > len(block_table) * self._block_size:
            block_table.append(self._pool.allocate())
        return block_table

    def trim(self, sequence: Sequence, start: int) -> None:
        """Gives back the blocks of a running sequence that its tokens from `start` on do not attend to."""
        assert self._window is not None
        first, end = self._firsts[sequence], self._window.first_block(start)
        if first < end:
            self._firsts[sequence] = end
            for block_id in self._tables[sequence][first:end]:
                self._pool.release(block_id)

    def release(self, sequence: Sequence) -> None:
        """Frees all blocks of a sequence, if it has any."""
        if sequence not in self._tables:
            return
        # In reverse: the tail of a prompt is shared by fewer sequences, so it should be evicted before its head.
        for block_id in reversed(self._held(sequence)):
            self._pool.release(block_id)
        del self._tables[sequence]
        self._firsts.pop(sequence, None)

    def _held(self, sequence: Sequence) -> list[int]:
        block_table = self._tables[sequence]
        return block_table if self._window is None else block_table[self._firsts[sequence] :]
