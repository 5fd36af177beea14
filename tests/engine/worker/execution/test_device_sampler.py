"""The device sampler chooses the same tokens as the host sampler."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.device_sampler import DeviceSample, draw_positions
from glimpse.engine.worker.execution.sampler import SHORTLIST_SIZE, SequenceSampler, draw_position, sample
from glimpse.engine.worker.tensors.draws import DrawParams
from glimpse.engine.worker.tensors.transfer import pack, packed_size, unpack

samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    top_k=st.sampled_from([0, 0, 1, 5, SHORTLIST_SIZE, 300]),
    top_p=st.sampled_from([1.0, 0.0, 0.5, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.9]),
    seed=st.integers(0, 10**6),
    logprobs=st.sampled_from([None, None, 0, 3, 1000]),
)


def samplers(params: Sequence[SamplingParams]) -> list[SequenceSampler]:
    return [SequenceSampler(each, prompt_token_ids=[1], eos_token_ids=[0]) for each in params]


def random_logits(num_rows: int, size: int, *, spread: float, seed: int) -> Tensor:
    return spread * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(
    params=st.lists(samplings, min_size=1, max_size=6),
    size=st.sampled_from([20, SHORTLIST_SIZE, 700]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 1000),
)
def test_device_samples_equal_host_samples(params: list[SamplingParams], size: int, spread: float, seed: int):
    logits = random_logits(len(params), size, spread=spread, seed=seed)
    one_by_one = sample(logits.clone(), samplers(params))
    choice = DeviceSample(logits.clone(), samplers(params))
    handed_on = choice.token_ids.tolist()
    together, mispredicted = choice.result()
    assert [each.token_id for each in together] == [each.token_id for each in one_by_one]
    assert [[token_id for token_id, _ in each.top] for each in together] == [
        [token_id for token_id, _ in each.top] for each in one_by_one
    ]
    for found, expected in zip(together, one_by_one, strict=True):
        assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
    differing = {row for row, each in enumerate(together) if each.token_id != handed_on[row]}
    assert mispredicted == differing


def test_draws_beyond_the_shortlist_are_mispredicted():
    params = [SamplingParams(temperature=50.0, seed=seed, logprobs=1) for seed in range(20)]
    logits = random_logits(20, 3000, spread=1.0, seed=3)
    samples, mispredicted = DeviceSample(logits, samplers(params)).result()
    assert len(mispredicted) > 10, "a shortlist covers little of a flat distribution"
    expected = logits.log_softmax(dim=-1)
    for row, each in enumerate(samples):
        assert each.logprob == pytest.approx(expected[row, each.token_id].item(), abs=1e-4)


@given(
    params=st.lists(samplings, min_size=1, max_size=8),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8),
    size=st.integers(1, 40),
    shown=st.integers(1, 40),
    spread=st.sampled_from([0.1, 1.0, 20.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_draw_positions_equal_draw_position(
    params: list[SamplingParams], uniforms: list[float], size: int, shown: int, spread: float, seed: int
):
    probabilities = random_logits(len(params), size, spread=spread, seed=seed).double().softmax(dim=-1)
    probs = probabilities.sort(dim=-1, descending=True).values[:, :shown]
    complete = shown >= size

    def column(values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    row_params = DrawParams(
        rows=torch.arange(len(params)),
        temperature=column([each.temperature for each in params], torch.float64),
        top_k=column([each.top_k for each in params], torch.int64),
        min_p=column([each.min_p for each in params], torch.float64),
        top_p=column([each.top_p for each in params], torch.float64),
        uniform=column(uniforms[: len(params)], torch.float64),
    )
    positions, resolved = draw_positions(probs, row_params, complete=complete)
    for row, sampling in enumerate(params):
        expected = draw_position(probs[row].numpy(), complete=complete, sampling=sampling, uniform=uniforms[row])
        assert resolved[row] == (expected is not None)
        assert expected is None or positions[row] == expected


def test_draws_depend_on_the_position_in_the_answer():
    first, again = samplers([SamplingParams(seed=4)] * 2)
    uniforms = [first.draw()]
    assert first.draw() == uniforms[0], "repeated calls return the same number"
    for token_id in (1, 2):
        first.append_token(token_id)
        uniforms.append(first.draw())
    again.num_generated = 2
    assert again.draw() == uniforms[2]
    again.num_generated = 1
    assert again.draw() == uniforms[1]
    assert len(set(uniforms)) == 3


def test_pack_and_unpack_round_trip():
    arrays = [
        np.arange(6).reshape(2, 3),
        np.array([], dtype=np.int64),
        np.array([0.1, -2.5]),
        np.array([np.iinfo(np.int64).max]),
        np.arange(12).reshape(3, 4)[:, ::2],
    ]
    packed = torch.zeros(packed_size(arrays), dtype=torch.int64)
    pack(arrays, packed.numpy())
    tensors = unpack(packed, arrays)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype
        assert not array.size or tensor.data_ptr() % 128 == packed.data_ptr() % 128
