"""Attention on CUDA against its plain twin in float32. Without a GPU the kernels are interpreted."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from glimpse.engine.cuda import attention
from glimpse.engine.cuda.attention import paged_attention
from tests.engine.attention_steps import Step, plain
from tests.engine.cuda.steps import attend, make_step, plan_of

mixed_lengths = st.lists(
    st.tuples(st.just(1), st.sampled_from([0, 3, 127, 128, 200])) | st.tuples(st.integers(2, 40), st.integers(0, 70)),
    min_size=1,
    max_size=4,
)


def assert_near(actual: Tensor, step: Step) -> None:
    """Within the rounding of float32; in bfloat16 within that of the weights and of the result."""
    tolerance = 1e-5 if actual.dtype is torch.float32 else 2**-7
    torch.testing.assert_close(actual.float(), plain(step), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=10)
@given(
    lengths=mixed_lengths,
    head_dim=st.sampled_from([64, 80, 128]),
    num_kv_heads=st.integers(1, 2),
    num_queries_per_kv=st.sampled_from([1, 6, 7]),
    block_size=st.sampled_from([16, 32]),
    seed=st.integers(0, 99),
)
def test_paged_attention_is_attention(
    dtype: torch.dtype,
    lengths: list[tuple[int, int]],
    head_dim: int,
    num_kv_heads: int,
    num_queries_per_kv: int,
    block_size: int,
    seed: int,
):
    step = make_step(
        lengths,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        num_queries_per_kv=num_queries_per_kv,
        block_size=block_size,
        dtype=dtype,
        seed=seed,
    )
    assert_near(attend(step), step)


@pytest.mark.parametrize("num_keys", [8, 127, 128, 129, 256, 257, 900])
def test_keys_are_cut_into_no_more_than_the_most_parts(num_keys: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "MAX_SPLITS", 2)
    step = make_step([(1, num_keys - 1), (1, 0)], num_kv_heads=1)
    assert_near(attend(step), step)


def test_a_batch_of_more_sequences_than_are_searched_at_once():
    step = make_step([(2 + index % 2, index % 5) for index in range(66)], num_kv_heads=1, num_queries_per_kv=7)
    assert_near(attend(step), step)


def test_a_decoded_token_is_the_same_alone_and_beside_others():
    step = make_step([(1, 150), (30, 20), (1, 3), (2, 0), (1, 300)], dtype=torch.bfloat16)
    together = attend(step).split(step.query_lengths)
    for index in (0, 2, 4):
        assert torch.equal(attend(step.part(index)), together[index])


def test_a_plan_that_is_refilled_serves_other_lengths():
    """So a graph that was captured with one step computes another."""
    captured = make_step([(1, 0), (1, 20), (1, 299)])
    other = make_step([(1, 299), (1, 130), (1, 5)], seed=1)
    plan, refill = plan_of(captured), plan_of(other)
    for name in (field.name for field in fields(plan) if field.name != "max_query_length"):
        getattr(plan, name).copy_(getattr(refill, name))
    assert plan.max_query_length == refill.max_query_length == 1
    assert_near(paged_attention(other.query, other.cache, plan), other)


def test_large_scores_do_not_overflow():
    step = make_step([(1, 140), (3, 40)])
    step.query.mul_(1000)
    # float32 rounds scores of thousands to 1e-4 or so, and so the weights that follow from them.
    torch.testing.assert_close(attend(step), plain(step), rtol=1e-3, atol=1e-3)
