"""Attention on CUDA, compared with the reference implementation in float32. Interpreted without a GPU."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from typing import Any

from glimpse.engine.worker.cuda import attention
from glimpse.engine.worker.cuda.attention import paged_attention
from tests.engine.attention_steps import Step, plain
from tests.engine.worker.cuda.steps import attend, make_step, plan_of

mixed_lengths = st.lists(
    st.tuples(st.just(1), st.sampled_from([0, 3, 127, 128, 200])) | st.tuples(st.integers(2, 40), st.integers(0, 70)),
    min_size=1,
    max_size=4,
)


def assert_near(actual: Tensor, step: Step) -> None:
    """Tolerates rounding of float32, or for bfloat16 rounding of the weights and of the result."""
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
    is_int8=st.booleans(),
)
def test_matches_the_reference_implementation(dtype: torch.dtype, **drawn: Any):
    step = make_step(dtype=dtype, **drawn)
    assert_near(attend(step), step)


@pytest.mark.parametrize("num_keys", [8, 127, 128, 129, 256, 257, 900])
def test_respects_the_maximum_number_of_splits(num_keys: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "MAX_SPLITS", 2)
    step = make_step([(1, num_keys - 1), (1, 0)], num_kv_heads=1)
    assert_near(attend(step), step)


def test_batch_with_more_sequences_than_one_search_step():
    step = make_step([(2 + index % 2, index % 5) for index in range(66)], num_kv_heads=1, num_queries_per_kv=7)
    assert_near(attend(step), step)


def test_decodes_are_bit_identical_in_any_batch():
    step = make_step([(1, 150), (30, 20), (1, 3), (2, 0), (1, 300)], dtype=torch.bfloat16)
    together = attend(step).split(step.query_lengths)
    for index in (0, 2, 4):
        assert torch.equal(attend(step.part(index)), together[index])


def test_refilled_plan_computes_other_lengths():
    """A CUDA graph captured with one step is replayed for others."""
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
    # float32 rounds scores in the thousands to about 1e-4, and weights accordingly.
    torch.testing.assert_close(attend(step), plain(step), rtol=1e-3, atol=1e-3)
