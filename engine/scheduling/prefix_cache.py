"""Finds the computed blocks of a prefix that an earlier sequence had, pictures included.

A full block's name is a hash over all that its KV depends on: the name before it, its tokens, and which parts of which
media stand in it. Equal names therefore mean equal KV. Knows nothing of running and waiting, nor of the tensors.
"""

import hashlib
import struct
from collections.abc import Sequence as Many

from glimpse.engine.plan import MediaSpan
from glimpse.engine.scheduling.block_pool import BlockPool
from glimpse.engine.scheduling.sequence import Sequence, spans_between

_ROOT_DOMAIN = b"glimpse.kv.root.v1"
_BLOCK_DOMAIN = b"glimpse.kv.block.v1"


class PrefixCache:
    """The chains of named blocks in a pool. Disabled, it names none and finds none."""

    def __init__(self, *, pool: BlockPool, block_size: int, enabled: bool) -> None:
        self._pool = pool
        self._block_size = block_size
        self._enabled = enabled

    def match(self, sequence: Sequence) -> list[int]:
        """Ids of the blocks, in order, with the longest computed prefix of a sequence; the caller retains them.

        They never contain its last token: that one is computed, for its logits are wanted.
        """
        block_ids: list[int] = []
        if not self._enabled:
            return block_ids
        for index in range((sequence.num_tokens - 1) // self._block_size):
            block_id = self._pool.find(self._hash_of(sequence, index))
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def next_hash(self, sequence: Sequence, num_blocks: int) -> bytes | None:
        """The name of the block that `match` would find after the first `num_blocks`; None if it looks for no more."""
        if not self._enabled or num_blocks >= (sequence.num_tokens - 1) // self._block_size:
            return None
        return self._hash_of(sequence, num_blocks)

    def names(self, sequence: Sequence, start: int, end: int) -> set[bytes]:
        """Names of the blocks that are completed when the tokens from `start` to before `end` are computed."""
        if not self._enabled:
            return set()
        blocks = range(start // self._block_size, end // self._block_size)
        return {self._hash_of(sequence, index) for index in blocks}

    def publish(self, sequence: Sequence, *, first_token: int) -> None:
        """Makes findable the blocks that were completed when the tokens from `first_token` on were computed."""
        if not self._enabled:
            return
        for index in range(first_token // self._block_size, sequence.num_computed_tokens // self._block_size):
            self._pool.name(sequence.block_table[index], self._hash_of(sequence, index))

    def withdraw(self, block_table: Many[int], start: int, end: int) -> None:
        """Takes `publish` back for the blocks of a table that the tokens from `start` to before `end` completed."""
        for index in range(start // self._block_size, end // self._block_size):
            self._pool.evict(block_table[index])

    def _hash_of(self, sequence: Sequence, index: int) -> bytes:
        hashes = sequence.block_hashes
        for start in range(len(hashes) * self._block_size, (index + 1) * self._block_size, self._block_size):
            parent = hashes[-1] if hashes else root_hash(sequence.cache_salt)
            token_ids = sequence.token_ids[start : start + self._block_size]
            hashes.append(block_hash(parent, start, token_ids, sequence.spans))
        return hashes[index]


def root_hash(cache_salt: str) -> bytes:
    """What every chain of a salt begins with."""
    return _hash(_ROOT_DOMAIN, (cache_salt.encode(),))


def block_hash(parent: bytes, start: int, token_ids: Many[int], spans: Many[MediaSpan]) -> bytes:
    """The name of a block.

    Args:
        parent: Name of the block before it, or the root.
        start: Index in the sequence of its first token.
        token_ids: Its tokens.
        spans: The sequence's media; those that do not reach into the block do not count.
    """
    end = start + len(token_ids)
    fields = [parent, struct.pack(f"<{len(token_ids)}q", *token_ids)]
    for span in spans_between(spans, start, end):
        # Where in the block it stands, which of its tokens these are, and how far apart their positions are.
        first, last = max(span.start, start), min(span.end, end)
        fields += (
            span.key,
            struct.pack("<3qd", first - start, first - span.start, last - span.start, span.mrope_time_interval),
        )
    return _hash(_BLOCK_DOMAIN, fields)


def _hash(domain: bytes, fields: Many[bytes]) -> bytes:
    """SHA-256 over a domain and fields, each after its length, so that no two lists of fields are the same bytes."""
    digest = hashlib.sha256()
    for part in (domain, *fields):
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.digest()
