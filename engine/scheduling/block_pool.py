"""Which KV blocks are held, by how many, and what the free ones still contain.

Knows block ids and opaque names of contents; nothing of tokens, sequences or tensors. Every operation takes constant
time.
"""

from collections import OrderedDict


class BlockPool:
    """Reference-counted blocks. A free block can be found by the name of its contents until it is allocated."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        # In the order in which they are allocated: blocks without a name first, then the longest unused.
        self._free = OrderedDict[int, None].fromkeys(range(num_blocks))
        self._names: list[bytes | None] = [None] * num_blocks
        self._named: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def is_free(self, block_id: int) -> bool:
        return self._num_holders[block_id] == 0

    def allocate(self) -> int:
        """Takes the free block that is missed least; its contents lose their name.

        Raises:
            KeyError: no block is free.
        """
        block_id, _ = self._free.popitem(last=False)
        self.evict(block_id)
        self._num_holders[block_id] = 1
        return block_id

    def retain(self, block_id: int) -> None:
        """Adds a holder to a block, free or held."""
        if self._num_holders[block_id] == 0:
            del self._free[block_id]
        self._num_holders[block_id] += 1

    def release(self, block_id: int) -> None:
        """Takes a holder away; the last one's block is free, and among the named ones the last to be allocated."""
        assert self._num_holders[block_id] > 0, f"block {block_id} is released but nobody holds it"
        self._num_holders[block_id] -= 1
        if self._num_holders[block_id] == 0:
            self._free[block_id] = None
            if self._names[block_id] is None:
                self._free.move_to_end(block_id, last=False)

    def name(self, block_id: int, name: bytes) -> None:
        """Makes a held block's contents findable, unless another block with the same contents already is."""
        if name not in self._named and self._names[block_id] is None:
            self._names[block_id] = name
            self._named[name] = block_id

    def evict(self, block_id: int) -> None:
        """Makes a block's contents, if they have a name, not findable any more."""
        name = self._names[block_id]
        if name is not None:
            del self._named[name]
            self._names[block_id] = None

    def find(self, name: bytes) -> int | None:
        """The block, free or held, with the contents of this name."""
        return self._named.get(name)
