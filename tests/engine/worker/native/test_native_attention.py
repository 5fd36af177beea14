"""Native attention, compared with the reference implementation in float32 at every level of this machine."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glimpse.engine.worker.layers.norm import HeadNorms
from glimpse.engine.worker.layers.ops import TorchOps
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.layers.rotary import rotate as plain_rotate
from glimpse.engine.worker.native import attention
from glimpse.engine.worker.native.library import Level
from glimpse.engine.worker.native.native_ops import as_norm
from tests.engine import attention_steps
from tests.engine.attention_steps import Step, plain
from tests.engine.levels import at_each_level, needs_kernels

pytestmark = needs_kernels


each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
make_step = partial(attention_steps.make_step, num_queries_per_kv=7, block_size=32, query_scale=2.0)


def attend(
    step: Step, level: Level, window: int | None = None, bidirectional: Sequence[tuple[int, int]] = ()
) -> Tensor:
    plan = attention.plan_attention(
        query_lengths=step.query_lengths,
        key_lengths=step.key_lengths,
        block_tables=step.block_tables,
        window=window,
        bidirectional=bidirectional,
    )
    return attention.paged_attention(step.query, step.cache, plan, level=level)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Tolerates rounding of the result and of the weights to its type."""
    tolerance = 2**-7 if actual.dtype is torch.bfloat16 else 2e-5
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


mixed_lengths = st.lists(
    st.tuples(st.just(1), st.integers(0, 700)) | st.tuples(st.integers(2, 150), st.sampled_from([0, 5, 255, 256, 300])),
    min_size=1,
    max_size=5,
)


@at_each_level
@each_dtype
@settings(max_examples=15)
@given(
    lengths=mixed_lengths,
    head_dim=st.sampled_from([16, 32, 64, 80, 128]),
    num_kv_heads=st.integers(1, 3),
    num_queries_per_kv=st.sampled_from([1, 2, 7, 17]),
    block_size=st.sampled_from([32, 64]),
    seed=st.integers(0, 99),
    is_int8=st.booleans(),
)
def test_paged_attention_matches_the_reference_implementation(level: Level, dtype: torch.dtype, **drawn: Any):
    step = make_step(dtype=dtype, **drawn)
    assert_near(attend(step, level), plain(step))


@at_each_level
@each_dtype
@pytest.mark.parametrize(("head_dim", "is_int8"), [(16, False), (64, False), (64, True), (128, False)])
def test_tokens_are_bit_identical_in_any_batch_and_chunk(
    level: Level, dtype: torch.dtype, head_dim: int, is_int8: bool
):
    lengths = [(1, 900), (70, 300), (1, 3), (300, 0), (4, 511)]
    step = make_step(lengths, head_dim=head_dim, dtype=dtype, is_int8=is_int8)
    together = attend(step, level).split(step.query_lengths)
    for sequence, first, last in [
        (0, 0, 1),
        (1, 0, 70),
        (1, 69, 70),
        (1, 3, 20),
        (3, 0, 257),
        (3, 255, 256),
        (4, 2, 3),
    ]:
        alone = attend(step.part(sequence, first, last), level)
        assert torch.equal(alone, together[sequence][first:last])


@at_each_level
@each_dtype
@settings(max_examples=15)
@given(
    lengths=mixed_lengths,
    window=st.sampled_from([1, 2, 31, 32, 100, 255, 256, 257, 600]),
    num_queries_per_kv=st.sampled_from([1, 7, 17]),
    seed=st.integers(0, 99),
)
def test_windows_match_the_reference_implementation(
    level: Level, dtype: torch.dtype, lengths: list[tuple[int, int]], window: int, num_queries_per_kv: int, seed: int
):
    step = make_step(lengths, num_queries_per_kv=num_queries_per_kv, dtype=dtype, seed=seed)
    assert_near(attend(step, level, window), plain(step, window))


@at_each_level
@each_dtype
@pytest.mark.parametrize("window", [None, 40, 300])
def test_runs_of_tokens_that_attend_to_each_other_match_the_reference_implementation(
    level: Level, dtype: torch.dtype, window: int | None
):
    step = make_step([(1, 900), (70, 300), (300, 0), (33, 250)], dtype=dtype)
    runs = [(1, 16), (40, 31), (71, 36), (107, 36), (371, 33)]
    assert_near(attend(step, level, window, runs), plain(step, window, runs))
    assert not torch.equal(attend(step, level, window, runs)[1], attend(step, level, window)[1])


@at_each_level
@each_dtype
@pytest.mark.parametrize("window", [5, 256, 300])
def test_tokens_with_windows_are_bit_identical_in_any_batch_and_chunk(level: Level, dtype: torch.dtype, window: int):
    step = make_step([(1, 900), (70, 300), (1, 3), (300, 0), (4, 511)], dtype=dtype)
    together = attend(step, level, window).split(step.query_lengths)
    for sequence, first, last in [(0, 0, 1), (1, 69, 70), (1, 3, 20), (3, 0, 257), (3, 255, 300), (4, 2, 3)]:
        alone = attend(step.part(sequence, first, last), level, window)
        assert torch.equal(alone, together[sequence][first:last])


@at_each_level
@each_dtype
@pytest.mark.parametrize("window", [None, 700])
def test_results_do_not_depend_on_the_number_of_threads(level: Level, dtype: torch.dtype, window: int | None):
    step = make_step([(1, 3000), (5, 1000)], num_kv_heads=1, dtype=dtype)
    num_threads = torch.get_num_threads()
    outputs: list[Tensor] = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            outputs.append(attend(step, level, window))
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@at_each_level
@each_dtype
def test_large_scores_do_not_overflow(level: Level, dtype: torch.dtype):
    step = make_step([(1, 400), (3, 40)], dtype=dtype)
    step.query.mul_(1000)
    torch.testing.assert_close(attend(step, level).float(), plain(step), rtol=2**-7, atol=2**-7)


def full_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Computes attention in float32 by definition: [patches, heads, head_dim]."""
    query, key, value = query.float(), key.float(), value.float()
    weights = (torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[2])).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@at_each_level
@each_dtype
@pytest.mark.parametrize("head_dim", [16, 48, 64, 72, 80, 128])
@pytest.mark.parametrize("sizes", [(1,), (64, 36), (300, 16, 4)])
def test_packed_attention_stays_within_segments(
    level: Level, dtype: torch.dtype, head_dim: int, sizes: tuple[int, ...]
):
    generator = torch.Generator().manual_seed(head_dim)
    qkv = torch.randn(sum(sizes), 3, 5, head_dim, generator=generator).to(dtype)
    starts = torch.tensor([0, *torch.tensor(sizes).cumsum(0)], dtype=torch.int32)
    query, key, value = qkv.unbind(1)  # views, with gaps between patches
    output = attention.packed_attention(query, key, value, starts, level=level)
    parts = [part.split(sizes) for part in (query, key, value)]
    assert_near(output, torch.cat([full_attention(*segment) for segment in zip(*parts, strict=True)]))


def random_rotation(num_tokens: int, head_dim: int) -> Rotation:
    angles = 100 * torch.rand(num_tokens, 1, head_dim // 2)
    return Rotation(angles.cos(), angles.sin())


@each_dtype
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "head_dim", "block_size"), [(1, 64, 32), (5, 16, 32), (40, 80, 64), (33, 128, 8)]
)
def test_rotate_and_store_matches_the_reference_implementation(
    dtype: torch.dtype, num_tokens: int, head_dim: int, block_size: int, is_int8: bool
):
    num_heads, num_kv_heads, num_blocks = 6, 2, 9
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    rotation = random_rotation(num_tokens, head_dim)
    slots = torch.randperm(num_blocks * block_size)[:num_tokens]
    cache, expected = (
        attention_steps.make_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype, is_int8=is_int8)
        for _ in range(2)
    )
    query, key, value = qkv.unflatten(1, (-1, head_dim)).split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    expected.write(slots, plain_rotate(key, rotation), value)
    assert torch.equal(attention.rotate_and_store(qkv, rotation, cache, slots), plain_rotate(query, rotation))
    assert torch.equal(cache.keys, expected.keys)
    assert torch.equal(cache.values, expected.values)


@each_dtype
@pytest.mark.parametrize(("num_tokens", "head_dim"), [(1, 128), (3, 24), (40, 80), (2, 512)])
def test_heads_are_normalized_before_their_rotation(dtype: torch.dtype, num_tokens: int, head_dim: int):
    """Sums of squares differ from torch's in their last bits, so bfloat16 results do now and then."""
    norms = HeadNorms(head_dim, eps=1e-6).to(dtype)
    assert norms.key is not None
    for norm in (norms.query, norms.key):
        norm.weight.uniform_(0.5, 1.5)
    qkv = torch.randn(num_tokens, (6 + 2 * 2) * head_dim).to(dtype)
    rotation = random_rotation(num_tokens, head_dim)
    slots = torch.randperm(64)[:num_tokens]
    cache, expected = (attention_steps.make_cache(2, 32, 2, head_dim, dtype) for _ in range(2))
    reference = TorchOps().rotate_and_store(qkv.clone(), rotation, expected, slots, norms)
    query = attention.rotate_and_store(qkv, rotation, cache, slots, as_norm(norms.query), as_norm(norms.key))
    tolerance = 2**-7 if dtype is torch.bfloat16 else 2**-20
    for actual, wanted in ((query, reference), (cache.keys, expected.keys)):
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance)
        assert dtype is torch.float32 or (actual == wanted).double().mean() > 0.99
    assert torch.equal(cache.values, expected.values)


@each_dtype
@pytest.mark.parametrize("num_tokens", [1, 50])
def test_rotate_keeps_other_heads(dtype: torch.dtype, num_tokens: int):
    x = torch.randn(num_tokens, 9, 80).to(dtype)
    rotation = random_rotation(num_tokens, 80)
    expected = torch.cat([plain_rotate(x[:, :6], rotation), x[:, 6:]], dim=1)
    attention.rotate(x, rotation, num_heads=6)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("head_dim", "block_size", "supported"),
    [
        (64, 32, True),
        (16, 64, True),
        (256, 128, True),
        (8, 32, False),
        (72, 32, False),
        (512, 32, True),
        (528, 32, False),
        (64, 16, False),
    ],
)
def test_reports_unsupported_sizes(head_dim: int, block_size: int, supported: bool):
    assert attention.supports(head_dim=head_dim, block_size=block_size) == supported
