"""Finds KV blocks that an earlier sequence with the same prefix, media included, has computed.

The hash of a full block covers all that its KV depends on: the hash of the block before it, its tokens, and the parts
of media in it; before the first stands the adapter, and the whole prompt if its tokens attend to each other. Equal
hashes therefore mean equal KV.
"""

import hashlib
import struct
from collections.abc import Sequence as Many

from glimpse.engine.core.memory.block_pool import BlockPool
from glimpse.engine.core.memory.sliding_window import SlidingWindow
from glimpse.engine.core.request import Request, spans_between
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.protocol.media import MediaSpan

_ROOT_DOMAIN = b"glimpse.kv.root.v1"
_BLOCK_DOMAIN = b"glimpse.kv.block.v1"


class PrefixCache:
    """The hash chains of the blocks in a pool. If disabled, it registers none and finds none."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        block_size: int,
        enabled: bool,
        snapshots: BlockPool | None = None,
        sliding_pool: BlockPool | None = None,
        window: SlidingWindow | None = None,
    ) -> None:
        """
        Args:
            snapshots: States, by the hash of the last block before them. None: the model's layers keep none.
            sliding_pool: The blocks of sliding layers, by the hashes of those in `pool`, where they have their own.
            window: The window of these layers.
        """
        self._pool = pool
        self._snapshots = snapshots
        self._sliding_pool = sliding_pool
        self._window = window
        self._block_size = block_size
        self._enabled = enabled
        self._hashes: dict[Sequence, list[bytes]] = {}  # of its first full blocks, computed when needed

    def match(self, sequence: Sequence) -> list[int]:
        """Returns the ids of the blocks that hold the longest computed prefix of a sequence. The caller retains them.

        The last token is never among them: it is computed for its logits or its hidden state. A sequence that needs
        the hidden states of all tokens has none. The prefix does not end within an indivisible part, unless that is
        the whole prompt, whose blocks are those of equal prompts: the rest is computed whole. If layers keep states,
        it ends where a snapshot of them was kept. Sliding layers have the blocks of a window before its end.
        """
        block_ids = self._known_blocks(sequence)
        while (end := self._usable_end(sequence, len(block_ids))) is not None:
            del block_ids[end:]
        if self._snapshots is not None:
            while block_ids and self.find_snapshot(sequence, len(block_ids)) is None:
                block_ids.pop()
        return block_ids

    def window_blocks(self, sequence: Sequence, num_blocks: int) -> list[int]:
        """Returns the blocks of sliding layers after as many as `match` found. Ids before the window mean nothing."""
        assert self._sliding_pool is not None
        assert self._window is not None
        first = self._window.first_block(num_blocks * self._block_size)
        found = [self._sliding_pool.find(self._hash_of(sequence, index)) for index in range(first, num_blocks)]
        return [0] * first + [block_id for block_id in found if block_id is not None]

    def _usable_end(self, sequence: Sequence, num_blocks: int) -> int | None:
        """Returns a smaller number of blocks, after which a sequence might begin; None if it can after this number."""
        part = sequence.request.part_around(num_blocks * self._block_size)
        if part is not None and not sequence.request.bidirectional_prompt:
            return part[0] // self._block_size
        if self._sliding_pool is not None and self._window is not None:
            first = self._window.first_block(num_blocks * self._block_size)
            for index in reversed(range(first, num_blocks)):
                if self._sliding_pool.find(self._hash_of(sequence, index)) is None:
                    return index
        return None

    def num_known_blocks(self, sequence: Sequence) -> int:
        """Returns how many blocks hold computed KV of the first tokens of a sequence, wherever `match` ends."""
        return len(self._known_blocks(sequence))

    def find_snapshot(self, sequence: Sequence, num_blocks: int) -> int | None:
        """Returns the state after the first `num_blocks` blocks, at least one, of a sequence; None if none was kept."""
        return None if self._snapshots is None else self._snapshots.find(self._hash_of(sequence, num_blocks - 1))

    def _known_blocks(self, sequence: Sequence) -> list[int]:
        block_ids: list[int] = []
        if not self._enabled or sequence.request.needs_all_states:
            return block_ids
        for index in range((sequence.num_tokens - 1) // self._block_size):
            block_id = self._pool.find(self._hash_of(sequence, index))
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def next_hash(self, sequence: Sequence, num_blocks: int) -> bytes | None:
        """Returns the hash that `match` looks for after `num_blocks` blocks; None if it looks no further."""
        is_last = num_blocks >= (sequence.num_tokens - 1) // self._block_size
        if not self._enabled or is_last or sequence.request.needs_all_states:
            return None
        return self._hash_of(sequence, num_blocks)

    def hashes(self, sequence: Sequence, start: int, end: int) -> set[bytes]:
        """Returns the hashes of the blocks that computing the tokens from `start` to before `end` fills."""
        if not self._enabled:
            return set()
        blocks = range(start // self._block_size, end // self._block_size)
        return {self._hash_of(sequence, index) for index in blocks}

    def register_blocks(
        self, sequence: Sequence, block_table: Many[int], start: int, *, sliding_table: Many[int] | None = None
    ) -> None:
        """Registers the blocks that were filled when the tokens from `start` on were computed."""
        if not self._enabled:
            return
        for index in range(start // self._block_size, sequence.num_computed_tokens // self._block_size):
            self._pool.register(block_table[index], self._hash_of(sequence, index))
            if self._sliding_pool is not None and sliding_table is not None:
                self._sliding_pool.register(sliding_table[index], self._hash_of(sequence, index))

    def evict_blocks(
        self, block_table: Many[int], start: int, end: int, *, sliding_table: Many[int] | None = None
    ) -> None:
        """Takes `register_blocks` back for the blocks that the tokens from `start` to before `end` filled."""
        for index in range(start // self._block_size, end // self._block_size):
            self._pool.evict(block_table[index])
            if self._sliding_pool is not None and sliding_table is not None:
                self._sliding_pool.evict(sliding_table[index])

    def forget(self, sequence: Sequence) -> None:
        """Forgets the hashes of a sequence that has ended. Its registered blocks are still found."""
        self._hashes.pop(sequence, None)

    def _hash_of(self, sequence: Sequence, index: int) -> bytes:
        hashes, request = self._hashes.setdefault(sequence, []), sequence.request
        for start in range(len(hashes) * self._block_size, (index + 1) * self._block_size, self._block_size):
            parent = hashes[-1] if hashes else _root_of(request)
            token_ids = sequence.token_ids[start : start + self._block_size]
            hashes.append(block_hash(parent, start, token_ids, request.spans))
        return hashes[index]


def _root_of(request: Request) -> bytes:
    root = root_hash(request.cache_salt, request.adapter)
    return block_hash(root, 0, request.prompt_token_ids, request.spans) if request.bidirectional_prompt else root


def root_hash(cache_salt: str, adapter: bytes = b"") -> bytes:
    """Returns the hash that stands before the first block of every sequence with this salt and this adapter."""
    return _hash(_ROOT_DOMAIN, (cache_salt.encode(), adapter))


def block_hash(parent: bytes, start: int, token_ids: Many[int], spans: Many[MediaSpan]) -> bytes:
    """Returns the hash of a block's contents.

    Args:
        parent: Hash of the block before it, or the root.
        start: Index in the sequence of its first token.
        spans: The sequence's media. Those outside the block are ignored.
    """
    end = start + len(token_ids)
    fields = [parent, struct.pack(f"<{len(token_ids)}q", *token_ids)]
    for span in spans_between(spans, start, end):
        for row, first, length in span.rows_between(start, end):
            # Where the rows are in the block, which these are, and how far apart their positions are.
            place = struct.pack("<3qd", first - start, row, row + length, span.mrope_time_interval)
            fields += (span.key, place)
    return _hash(_BLOCK_DOMAIN, fields)


def _hash(domain: bytes, fields: Many[bytes]) -> bytes:
    """SHA-256 over a domain and fields, each with its length before it: different fields never give the same bytes."""
    digest = hashlib.sha256()
    for part in (domain, *fields):
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.digest()
