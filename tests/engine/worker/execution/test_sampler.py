"""Sampling, compared with brute-force references and exact distributions."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from glimpse.engine.core.plan import Sample
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.sampler import SHORTLIST_SIZE, SequenceSampler, draw_position, sample

EOS = 3


def make_sampler(prompt: Sequence[int] = (), **params: Any) -> SequenceSampler:
    return SequenceSampler(SamplingParams(**params), prompt_token_ids=prompt, eos_token_ids=(EOS,))


def sample_one(logits: Sequence[float] | Tensor, sampler: SequenceSampler) -> Sample:
    return sample(torch.as_tensor(logits, dtype=torch.float32).clone()[None], [sampler])[0]


def random_logits(size: int, *, spread: float, seed: int = 0) -> Tensor:
    return spread * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def truncated(probabilities: np.ndarray, *, min_p: float, top_k: int, top_p: float) -> np.ndarray:
    """Truncates descending probabilities by the definitions, one token at a time."""
    kept = [p for p in probabilities if p >= min_p * probabilities[0]][: top_k or None]
    total, nucleus = sum(kept), list[float]()
    for p in kept:
        nucleus.append(p)
        if sum(nucleus) >= top_p * total:
            break
    left = np.zeros(len(probabilities))
    left[: len(nucleus)] = np.array(nucleus) / sum(nucleus)
    return left


class TestGreedy:
    def test_takes_the_argmax(self):
        assert sample_one([1.0, 4.0, 2.0, 3.0], make_sampler(temperature=0)) == Sample(token_id=1)

    def test_batch_mixes_all_kinds_of_rows(self):
        logits = torch.stack([random_logits(50, spread=2, seed=seed) for seed in range(6)])
        kinds: list[dict[str, Any]] = [
            {"temperature": 0},
            {"seed": 1},
            {"temperature": 0, "logprobs": 2},
            {"temperature": 0, "logit_bias": {7: 100.0}},
            {"seed": 2, "top_k": 3, "logprobs": 0},
            {"temperature": 0},
        ]
        alone = [sample_one(row, make_sampler(**kind)) for row, kind in zip(logits, kinds, strict=True)]
        assert sample(logits.clone(), [make_sampler(**kind) for kind in kinds]) == alone
        assert alone[3].token_id == 7


class TestPenalties:
    LOGITS = (2.0, -1.0, 0.5, 0.0, 3.0)

    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            ({"frequency_penalty": 0.5}, [1.0, -1.0, 0.0, 0.0, 3.0]),
            ({"presence_penalty": 0.5}, [1.5, -1.0, 0.0, 0.0, 3.0]),
            ({"frequency_penalty": 0.5, "presence_penalty": -0.25}, [1.25, -1.0, 0.25, 0.0, 3.0]),
            ({"repetition_penalty": 2.0}, [1.0, -2.0, 0.25, 0.0, 3.0]),
            ({"repetition_penalty": 0.5}, [4.0, -0.5, 1.0, 0.0, 3.0]),
            ({"repetition_penalty": 2.0, "frequency_penalty": 0.5}, [0.0, -2.0, -0.25, 0.0, 3.0]),
            ({"logit_bias": {1: 1.5, 4: -2.0}}, [2.0, 0.5, 0.5, 0.0, 1.0]),
            ({"logit_bias": {0: -3.0}, "repetition_penalty": 2.0}, [-2.0, -2.0, 0.25, 0.0, 3.0]),
        ],
    )
    def test_table(self, params: dict[str, Any], expected: list[float]):
        """The prompt contains tokens 1 and 3, the answer so far 0, 0 and 2."""
        sampler = make_sampler(prompt=(1, 3, 1), temperature=0.0, **params)
        for token_id in (0, 0, 2):
            sampler.append_token(token_id)
        row = torch.tensor(self.LOGITS)
        sampler.adjust(row)
        assert row.tolist() == pytest.approx(expected)

    def test_defaults_change_nothing(self):
        row = torch.tensor(self.LOGITS)
        make_sampler(prompt=(0, 1)).adjust(row)
        assert row.tolist() == list(self.LOGITS)


class TestMinTokens:
    LOGITS = (0.0, 1.0, 2.0, 9.0, 8.0)  # the model wants to end (3), or else the stop token (4)

    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            ({"min_tokens": 2}, [4, 4, EOS]),
            ({"min_tokens": 2, "stop_token_ids": (4,)}, [2, 2, EOS]),
            ({"min_tokens": 2, "stop_token_ids": (4,), "ignore_eos": True}, [EOS, EOS, EOS]),
            ({"min_tokens": 2, "logit_bias": {EOS: 100.0}}, [4, 4, EOS]),
            ({}, [EOS, EOS, EOS]),
        ],
    )
    def test_end_tokens_are_not_generated_early(self, params: dict[str, Any], expected: list[int]):
        sampler = make_sampler(temperature=0.0, **params)
        assert [sample_one(self.LOGITS, sampler).token_id for _ in expected] == expected


class TestBans:
    LOGITS = (1.0, 4.0, 2.0, 9.0, 3.0)

    def test_only_allowed_tokens_are_generated(self):
        sampler = make_sampler(temperature=0.0, allowed_token_ids=(0, 2), logprobs=5)
        found = sample_one(self.LOGITS, sampler)
        assert (found.token_id, [token_id for token_id, _ in found.top]) == (2, [2, 0])
        drawn = make_sampler(allowed_token_ids=(0, 2), temperature=2.0, seed=1)
        assert {sample_one(self.LOGITS, drawn).token_id for _ in range(64)} == {0, 2}

    def test_a_bad_word_is_not_completed(self):
        sampler = make_sampler(temperature=0.0, bad_word_token_ids=((3,), (1, 1), (1, 4, 1)))
        assert [sample_one(self.LOGITS, sampler).token_id for _ in range(6)] == [1, 4, 4, 1, 4, 4]

    def test_an_answer_without_any_token_left_fails(self):
        sampler = make_sampler(temperature=0.0, allowed_token_ids=(1,), bad_word_token_ids=((1,),))
        sample_one(self.LOGITS, sampler)
        assert sampler.failure == "allowed_token_ids and bad_words leave no token that may follow"


class TestLogprobs:
    def test_are_taken_after_penalties_and_before_temperature_and_truncation(self):
        logits = random_logits(40, spread=2)
        params: dict[str, Any] = {"logit_bias": {5: 3.0}, "logprobs": 4, "seed": 0}
        found = sample_one(logits, make_sampler(**params, temperature=0.3, top_k=1))
        logits[5] += 3.0
        expected = logits.log_softmax(dim=-1)
        top = expected.topk(4)
        assert found.logprob == pytest.approx(expected[found.token_id].item(), abs=1e-5)
        assert [token_id for token_id, _ in found.top] == top.indices.tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(top.values.tolist(), abs=1e-5)

    @pytest.mark.parametrize(("asked", "returned"), [(0, 0), (1, 1), (60, 40)])
    def test_returns_the_requested_number(self, asked: int, returned: int):
        found = sample_one(random_logits(40, spread=1), make_sampler(temperature=0, logprobs=asked))
        assert found.logprob is not None
        assert len(found.top) == returned

    def test_none_unless_requested(self):
        found = sample_one(random_logits(40, spread=1), make_sampler(seed=1))
        assert (found.logprob, found.top) == (None, ())


class TestSeeds:
    def draws(self, seed: int | None) -> list[int]:
        sampler, logits = make_sampler(seed=seed), random_logits(100, spread=1)
        return [sample_one(logits, sampler).token_id for _ in range(20)]

    def test_repeat_and_differ(self):
        assert self.draws(7) == self.draws(7)
        assert self.draws(7) != self.draws(8)
        assert self.draws(None) != self.draws(None)

    def test_draws_do_not_depend_on_the_batch(self):
        logits = random_logits(100, spread=1)
        sampler, others = make_sampler(seed=7), [make_sampler(seed=other) for other in range(3)]
        together = [sample(logits.repeat(4, 1), [*others, sampler])[3].token_id for _ in range(20)]
        assert together == self.draws(7)


class TestDrawing:
    @pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.99, 1.0])
    @pytest.mark.parametrize("top_k", [0, 1, 5, SHORTLIST_SIZE, 400])
    @pytest.mark.parametrize("min_p", [0.0, 0.02, 0.5])
    @pytest.mark.parametrize("spread", [0.2, 3.0])
    def test_positions_follow_the_definition(self, spread: float, min_p: float, top_k: int, top_p: float):
        probabilities = np.sort(random_logits(1000, spread=spread).double().softmax(dim=-1).numpy())[::-1]
        sampling = SamplingParams(min_p=min_p, top_k=top_k, top_p=top_p)
        ends = truncated(probabilities, min_p=min_p, top_k=top_k, top_p=top_p).cumsum()
        for uniform in (0.0, 0.123, 0.5, 0.77, 0.9999):
            expected = int(np.searchsorted(ends, uniform, side="right"))
            assert draw_position(probabilities, complete=True, sampling=sampling, uniform=uniform) == expected
            shortlist = probabilities[:SHORTLIST_SIZE]
            assert draw_position(shortlist, complete=False, sampling=sampling, uniform=uniform) in (expected, None)

    @pytest.mark.parametrize(
        ("params", "tells"),
        [
            ({}, True),
            ({"top_p": 0.9}, True),
            ({"top_k": 50}, True),
            ({"top_k": SHORTLIST_SIZE}, True),
            ({"min_p": 0.1}, True),
            ({"top_k": SHORTLIST_SIZE + 1}, False),
            ({"top_p": 0.9999999}, False),
        ],
    )
    def test_shortlist_determines_what_it_can(self, params: dict[str, Any], tells: bool):
        probabilities = np.sort(random_logits(2000, spread=3).double().softmax(dim=-1).numpy())[::-1]
        sampling = SamplingParams(**params)
        position = draw_position(probabilities[:SHORTLIST_SIZE], complete=False, sampling=sampling, uniform=0.5)
        assert (position is not None) == tells

    @given(
        uniform=st.floats(0, 1, exclude_max=True),
        min_p=st.floats(0, 1),
        top_k=st.integers(0, 30),
        top_p=st.floats(0, 1),
        weights=st.lists(st.floats(0, 10), min_size=1, max_size=20),
    )
    def test_position_is_always_among_the_kept_tokens(
        self, uniform: float, min_p: float, top_k: int, top_p: float, weights: list[float]
    ):
        probs = np.exp(-np.sort(np.array(weights)))
        probs /= probs.sum()
        sampling = SamplingParams(min_p=min_p, top_k=top_k, top_p=top_p)
        position = draw_position(probs, complete=True, sampling=sampling, uniform=uniform)
        assert position is not None
        assert 0 <= position < min(len(probs), top_k or len(probs))
        assert probs[position] >= min_p * probs[0]

    @pytest.mark.parametrize(
        ("size", "params"),
        [
            (8, {}),
            (8, {"temperature": 0.5}),
            (8, {"top_k": 3}),
            (8, {"top_p": 0.8}),
            (8, {"min_p": 0.2, "top_p": 0.9, "temperature": 1.5}),
            (600, {"temperature": 3.0}),  # flat: many draws lie beyond the shortlist
            (600, {"temperature": 3.0, "top_p": 0.95}),
        ],
    )
    def test_frequencies_are_the_exact_distribution(self, size: int, params: dict[str, Any]):
        num_draws = 4000
        logits = random_logits(size, spread=1, seed=4)
        samplers = [make_sampler(seed=seed, **params) for seed in range(num_draws // 10)]
        drawn = Counter(
            found.token_id for _ in range(10) for found in sample(logits.repeat(len(samplers), 1), samplers)
        )
        probabilities, order = (logits.double() / params.get("temperature", 1.0)).softmax(dim=-1).sort(descending=True)
        kept = truncated(
            probabilities.numpy(),
            min_p=params.get("min_p", 0.0),
            top_k=int(params.get("top_k", 0)),
            top_p=params.get("top_p", 1.0),
        )
        assert all(kept[position] > 0 for position, token_id in enumerate(order.tolist()) if drawn[token_id])
        assert chi_square_tail(kept * num_draws, [drawn[token_id] for token_id in order.tolist()]) > 1e-4


def chi_square_tail(expected: np.ndarray, observed: Sequence[int]) -> float:
    """Returns the probability of a larger deviation. Rare tokens are combined (Wilson-Hilferty approximation)."""
    common = expected >= 5
    rare = [float(expected[~common].sum()), float(np.asarray(observed)[~common].sum())]
    pairs = [*zip(expected[common], np.asarray(observed)[common], strict=True), *([rare] if rare[0] >= 5 else [])]
    statistic = sum((seen - wanted) ** 2 / wanted for wanted, seen in pairs)
    freedom = len(pairs) - 1
    deviate = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(deviate / math.sqrt(2))
