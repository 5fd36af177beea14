"""Memory of a KV cache is mapped before tokens need it, and stays as it was written."""

import ctypes
import mmap
import platform
import re

import pytest
import torch

from glimpse.engine.core.plan import SequenceChunk
from glimpse.engine.worker.tensors.kv_cache import CacheShape, KVCache
from glimpse.engine.worker.tensors.prefault import NUM_TOKENS_AHEAD, Prefault

BLOCK_SIZE = 32
BLOCKS_AHEAD = NUM_TOKENS_AHEAD // BLOCK_SIZE
NUM_LAYERS = 3

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or [*map(int, re.findall(r"\d+", platform.release())[:2])] < [5, 14],
    reason="the system maps no memory on request",
)


def make_cache() -> KVCache:
    """Returns a cache whose layers have several huge pages each."""
    shape = CacheShape(num_kv_heads=8, head_dim=128, layer_kinds=("full",) * NUM_LAYERS)
    return shape.allocate(16 * BLOCKS_AHEAD, BLOCK_SIZE, torch.bfloat16, torch.device("cpu"))


def mapped(cache: KVCache, first: int, end: int) -> list[float]:
    """Returns the share of the pages of some blocks that is mapped, for the keys and values of each layer."""
    shares: list[float] = []
    for blocks in (layer[first:end] for tensor in (cache.keys, cache.values) for layer in tensor):
        begin = -(-blocks.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        num_pages = (blocks.data_ptr() + blocks.nbytes - begin) // mmap.PAGESIZE
        is_mapped = (ctypes.c_ubyte * num_pages)()
        length = ctypes.c_size_t(num_pages * mmap.PAGESIZE)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), length, is_mapped) == 0
        shares.append(sum(is_mapped) / num_pages)
    return shares


def chunk_of(*block_table: int) -> SequenceChunk:
    return SequenceChunk(sequence_id=1, start=0, token_ids=(1,), block_table=block_table, samples=True)


def test_maps_what_the_next_tokens_need_and_no_more() -> None:
    cache = make_cache()
    every = [1.0] * 2 * NUM_LAYERS
    assert max(mapped(cache, 1, cache.num_blocks - 1)) < 0.1
    prefault = Prefault(cache)
    while prefault.advance():
        pass
    assert mapped(cache, 0, BLOCKS_AHEAD) == every
    assert max(mapped(cache, 2 * BLOCKS_AHEAD, cache.num_blocks - 1)) < 0.5, "memory is left to others"

    cache.keys[1, 3], cache.values[2, 5 * BLOCKS_AHEAD - 1] = 7.0, 9.0
    prefault.use([chunk_of(5 * BLOCKS_AHEAD - 1), chunk_of(0, 1)])
    while prefault.advance():
        pass
    assert mapped(cache, 5 * BLOCKS_AHEAD, 6 * BLOCKS_AHEAD) == every
    assert (cache.keys[1, 3] == 7).all()
    assert (cache.values[2, 5 * BLOCKS_AHEAD - 1] == 9).all()
    assert not cache.keys[:, 5 * BLOCKS_AHEAD :].any()


def test_ends_with_the_cache() -> None:
    cache = make_cache()
    prefault = Prefault(cache)
    prefault.use([chunk_of(cache.num_blocks - 1)])
    calls = 0
    while prefault.advance():
        calls += 1
    assert calls <= 1 + 2 * NUM_LAYERS
    assert not prefault.advance()
