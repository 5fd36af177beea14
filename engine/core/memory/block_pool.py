"""Bookkeeping of KV blocks: how many holders each has, and which free blocks still have useful contents.

Blocks are ids, and their contents opaque hashes. Every operation takes constant time.
"""

from collections import OrderedDict


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

    def find(self, block_hash: bytes) -> int | None:
        """Returns the free or held block with these contents."""
        return self._block_of_hash.get(block_hash)
