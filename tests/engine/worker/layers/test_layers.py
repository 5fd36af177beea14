"""Layers, compared with their definitions."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes, KVHeads, ShortConvSizes
from glimpse.engine.worker.layers.attention import paged_attention, plan_attention
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.rotary import inverse_wavelengths, multimodal_rotation, rotate
from glimpse.engine.worker.tensors.kv_cache import CachePlan, CacheShape, LayerCache, dequantize, quantize
from tests.engine.attention_steps import make_step, plain

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 6, 2, 8, 4, 64


def attend_one(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Computes attention of one query [heads, head_dim] to [keys, kv_heads, head_dim] by definition."""
    keys, values = (tensor.repeat_interleave(HEADS // KV_HEADS, dim=1) for tensor in (keys, values))
    weights = (torch.einsum("hd,khd->hk", query, keys) / math.sqrt(HEAD_DIM)).softmax(dim=-1)
    return torch.einsum("hk,khd->hd", weights, values)


@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 20)) | st.tuples(st.just(1), st.integers(0, 30)),
        min_size=1,
        max_size=7,
    ),
    window=st.none() | st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_paged_attention_matches_attention(lengths: list[tuple[int, int]], window: int | None, seed: int):
    """Each pair has a number of new tokens and a number of tokens cached before them."""
    generator = torch.Generator().manual_seed(seed)
    cache = torch.randn(2, NUM_BLOCKS * 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, generator=generator)
    num_tables = max(-(-(new + cached) // BLOCK_SIZE) for new, cached in lengths)
    tables = torch.randperm(NUM_BLOCKS * 2, generator=generator)[: len(lengths) * num_tables].view(len(lengths), -1)
    query = torch.randn(sum(new for new, _ in lengths), HEADS, HEAD_DIM, generator=generator)
    plan = plan_attention(
        query_lengths=[new for new, _ in lengths],
        key_lengths=[new + cached for new, cached in lengths],
        block_tables=tables,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        window=window,
    )
    output = paged_attention(query, LayerCache(cache[0], cache[1]), plan)
    places = [(index, cached + place + 1) for index, (new, cached) in enumerate(lengths) for place in range(new)]
    for row, (index, num_keys) in enumerate(places):
        first = 0 if window is None else max(num_keys - window, 0)
        keys, values = (part[tables[index]].flatten(0, 1)[first:num_keys] for part in cache)
        assert torch.allclose(output[row], attend_one(query[row], keys, values), atol=1e-5)


def test_writes_the_cache_at_the_slots():
    shape = CacheShape(num_kv_heads=2, head_dim=8, layer_kinds=("full", "full"))
    cache = shape.allocate(3, 4, torch.bfloat16, torch.device("cpu"))
    key, value = torch.ones(2, 2, 8, dtype=torch.bfloat16), 2 * torch.ones(2, 2, 8, dtype=torch.bfloat16)
    cache.layer(1).write(torch.tensor([9, 2]), key, value)
    filled = cache.keys[1].flatten(0, 1)[:, 0, 0] != 0
    assert filled.nonzero().flatten().tolist() == [2, 9]
    assert cache.values[1].flatten(0, 1)[2].unique().tolist() == [2]
    assert not cache.keys[0].any()


@pytest.mark.parametrize("head_dim", [1, 80])
def test_numbers_of_8_bits_are_off_by_half_a_step(head_dim: int):
    heads = torch.randn(50, 2, head_dim) * torch.logspace(-3, 3, 50)[:, None, None]
    heads[7] = 0
    rounded = quantize(heads)
    assert rounded.shape == (50, 2, head_dim + 4)
    step = heads.abs().amax(dim=-1, keepdim=True) / 127
    assert ((dequantize(rounded, torch.float32) - heads).abs() <= 0.501 * step).all()


def test_attention_to_8_bits_is_as_near_as_its_steps_are_small():
    """Scores are off by half a step of keys times the query's sum of magnitudes, so weights by a factor."""
    step, exact = (make_step([(1, 90), (20, 40)], seed=1, is_int8=is_int8) for is_int8 in (True, False))
    error = (plain(step) - plain(exact)).abs().amax(dim=-1)
    largest = 5.0  # of all keys and values
    of_scores = step.query.abs().sum(dim=-1) * largest / 254 / 8
    assert (error <= largest * (2 * of_scores).expm1() + largest / 254).all()
    assert error.max() > 1e-4


DELTA_NET = DeltaNetSizes(num_key_heads=2, num_value_heads=4, key_head_dim=6, value_head_dim=10, conv_size=4)


WITHOUT = CacheShape(num_kv_heads=2, head_dim=8, layer_kinds=("full", "full"))
IN_8_BITS = replace(WITHOUT, is_int8=True)
WITH_STATES = replace(WITHOUT, layer_kinds=("delta_net", "full", "delta_net", "full"), states=DELTA_NET)
WITH_SMALL_STATES = replace(
    WITHOUT, layer_kinds=("short_conv", "full"), states=ShortConvSizes(conv_width=16, conv_size=3)
)
WITH_WINDOWS = replace(WITHOUT, layer_kinds=("sliding", "sliding", "full"), sliding=KVHeads(1, 24), window=10)
PLAN = CachePlan(block_size=4, max_sequences=2, max_batch_tokens=8, max_model_len=0, dtype=torch.bfloat16)


@pytest.mark.parametrize("shape", [WITHOUT, IN_8_BITS, WITH_STATES, WITH_WINDOWS, replace(WITH_WINDOWS, is_int8=True)])
@pytest.mark.parametrize("num_bytes", [9_000, 90_000])
def test_a_divided_memory_holds_what_is_allocated(shape: CacheShape, num_bytes: int):
    sizes = shape.divide(num_bytes, PLAN)
    cache = shape.allocate(
        sizes.num_blocks,
        4,
        torch.bfloat16,
        torch.device("cpu"),
        num_states=sizes.num_states,
        num_sliding_blocks=sizes.num_sliding_blocks,
    )
    used = sum(tensor.nbytes for tensor in (cache.keys, cache.values, *(cache.states or ()), *(cache.sliding or ())))
    assert used <= num_bytes < used + shape.block_bytes(4, torch.bfloat16)
    assert cache.num_sliding_blocks == sizes.num_sliding_blocks
    if shape.states is not None:
        assert cache.num_states == sizes.num_states == (4 if num_bytes > 80_000 else 1)


def test_draft_tokens_of_a_step_have_states_of_their_own():
    assert WITH_STATES.divide(900_000, PLAN).num_states == 2 * PLAN.max_sequences
    assert WITH_STATES.divide(900_000, replace(PLAN, may_draft=True)).num_states == 2 * PLAN.max_sequences + 15


@pytest.mark.parametrize(
    ("num_bytes", "max_model_len", "expected"),
    [
        (256, 0, (0, 0)),
        (5 * 1024, 0, (5, 0)),  # a sequence needs 5 in a step: no fewer than there are of the others
        (7 * 1024, 0, (13, 5)),
        (12 * 1024, 0, (24, 8)),  # half of the memory
        (12 * 1024, 100, (27, 7)),
        (24 * 1024, 0, (66, 10)),  # windows of 2 sequences, and a step
    ],
)
def test_blocks_of_sliding_layers_take_half_a_memory_at_most(
    num_bytes: int, max_model_len: int, expected: tuple[int, int]
):
    sizes = WITH_WINDOWS.divide(num_bytes, replace(PLAN, max_model_len=max_model_len))
    assert (sizes.num_blocks, sizes.num_sliding_blocks) == expected


@pytest.mark.parametrize("shape", [WITHOUT, WITH_STATES, WITH_SMALL_STATES, WITH_WINDOWS])
@pytest.mark.parametrize("num_tokens", [1, 30, 60, 999])
def test_a_memory_of_the_needed_size_holds_the_tokens(shape: CacheShape, num_tokens: int):
    assert 4 * shape.divide(shape.needed_bytes(num_tokens, PLAN), PLAN).num_blocks >= num_tokens


def test_a_memory_of_the_needed_size_has_no_more_than_all_states():
    states = 2 * PLAN.max_sequences * WITH_SMALL_STATES.state_bytes(PLAN.dtype)
    assert WITH_SMALL_STATES.needed_bytes(1000, PLAN) == 250 * WITH_SMALL_STATES.block_bytes(4, PLAN.dtype) + states


@pytest.mark.parametrize("bias", [False, True])
def test_named_weights_are_views_of_the_stack(bias: bool):
    linear = Linear(8, (4, 2, 6), bias=bias)
    for index, (name, tensor) in enumerate(linear.named_weights("a", "b", "c")):
        tensor.fill_(index)
        assert name.split(".") == ["abc"[index // (1 + bias)], "bias" if bias and index % 2 else "weight"]
    x = torch.randn(5, 8)
    parts = linear(x).split([4, 2, 6], dim=-1)
    for number, part in enumerate(parts):
        weight, bias_value = number * (1 + bias), 2.0 * number + 1 if bias else 0
        assert torch.allclose(part, (x.sum(dim=-1, keepdim=True) * weight + bias_value).expand_as(part), atol=1e-5)


def test_rms_norm_computes_in_float32():
    norm = RMSNorm(1024, eps=0.0).to(torch.bfloat16)
    norm.weight.data.fill_(2)
    x = torch.linspace(1, 2, 1024).to(torch.bfloat16)
    expected = (x.double() / x.double().square().mean().sqrt()).to(torch.bfloat16) * 2
    assert torch.equal(norm(x), expected)


@pytest.mark.parametrize(
    ("section", "interleaved", "places"),
    [((2, 3, 3), False, [3, 3, 5, 5, 5, 7, 7, 7]), ((4, 2, 2), True, [3, 5, 7, 3, 5, 7, 3, 3])],
)
def test_rotation_uses_the_axis_of_each_frequency(section: tuple[int, ...], interleaved: bool, places: list[int]):
    positions = torch.tensor([[3], [5], [7]])
    rotation = multimodal_rotation(positions, head_dim=16, theta=100.0, section=section, interleaved=interleaved)
    angles = torch.tensor(places) * inverse_wavelengths(16, 100.0, torch.device("cpu"))
    x = torch.randn(1, 2, 16)
    as_complex = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones(8), angles)
    assert torch.allclose(rotate(x, rotation), torch.cat([as_complex.real, as_complex.imag], dim=-1), atol=1e-6)
