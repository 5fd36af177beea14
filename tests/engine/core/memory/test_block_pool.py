"""Blocks are retained, released, found by hash, and allocated in the right order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.memory.block_pool import BlockPool


def test_block_is_free_after_its_last_release():
    pool = BlockPool(2)
    block_id = pool.allocate()
    pool.retain(block_id)
    pool.release(block_id)
    assert (pool.num_free, pool.num_used, pool.is_free(block_id)) == (1, 1, False)
    pool.release(block_id)
    assert (pool.num_free, pool.num_used, pool.is_free(block_id)) == (2, 0, True)


def test_empty_pool_raises():
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(KeyError):
        pool.allocate()


def test_free_block_is_found_by_its_hash_until_allocated():
    pool = BlockPool(1)
    block_id = pool.allocate()
    pool.register(block_id, b"contents")
    pool.release(block_id)
    assert pool.find(b"contents") == block_id
    assert pool.allocate() == block_id
    assert pool.find(b"contents") is None


def test_retained_block_is_not_allocated():
    pool = BlockPool(2)
    first = pool.allocate()
    pool.register(first, b"contents")
    pool.release(first)
    pool.retain(first)
    assert pool.allocate() != first
    assert pool.num_free == 0


def test_allocates_unhashed_blocks_then_least_recently_used():
    pool = BlockPool(4)
    blocks = [pool.allocate() for _ in range(4)]
    for block_id in blocks[:3]:
        pool.register(block_id, bytes([block_id]))
    for block_id in (blocks[1], blocks[0], blocks[2], blocks[3]):
        pool.release(block_id)
    pool.retain(blocks[1])
    pool.release(blocks[1])
    assert [pool.allocate() for _ in range(4)] == [blocks[3], blocks[0], blocks[2], blocks[1]]


def test_first_of_two_equal_blocks_keeps_the_hash():
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.register(first, b"contents")
    pool.register(second, b"contents")
    assert pool.find(b"contents") == first
    pool.release(second)
    assert pool.allocate() == second
    assert pool.find(b"contents") == first


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=60))
def test_counts_equal_those_of_a_plain_list(operations: list[tuple[int, int]]):
    pool = BlockPool(5)
    holders = [0] * 5
    for operation, block_id in operations:
        if operation == 0 and pool.num_free:
            mispredictions = pool.allocate()
            assert holders[mispredictions] == 0
            holders[mispredictions] = 1
        elif operation == 1:
            pool.retain(block_id)
            holders[block_id] += 1
        elif operation == 2 and holders[block_id]:
            pool.release(block_id)
            holders[block_id] -= 1
        elif operation == 3 and holders[block_id]:
            pool.register(block_id, bytes([block_id % 2]))
        assert pool.num_used == sum(count > 0 for count in holders)
        assert [pool.is_free(index) for index in range(5)] == [count == 0 for count in holders]
