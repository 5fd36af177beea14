"""The kernels that draw tokens, compared with the host's sampler. Interpreted without a GPU."""

import logging
import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.cuda import sampling
from glimpse.engine.worker.cuda.sampling import draw_tokens
from glimpse.engine.worker.execution.device_sampler import DeviceSample
from glimpse.engine.worker.execution.sampler import SHORTLIST_SIZE, SequenceSampler, draw_from_all, sample
from glimpse.engine.worker.loading.build_runner import choose_draw_tokens
from tests.engine.worker.cuda.draws import draw_params
from tests.engine.worker.cuda.steps import DEVICE

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(top_p=0.95),
    SamplingParams(temperature=0.3, top_k=5, top_p=0.9),
    SamplingParams(temperature=3.0, top_k=300),
    SamplingParams(min_p=0.05, top_k=40),
    SamplingParams(top_p=0.0),
    SamplingParams(temperature=50.0, min_p=0.9, top_p=0.5),
)


def random_logits(num_rows: int, size: int, *, spread: float, seed: int) -> Tensor:
    return spread * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def drawn(logits: Tensor, samplings: list[SamplingParams], uniforms: list[float]) -> list[int]:
    token_ids = torch.full((len(logits),), -1, device=DEVICE)
    draw_tokens(logits.to(DEVICE), draw_params(samplings, uniforms, device=DEVICE), token_ids)
    return token_ids.tolist()


def expected_draw(row: Tensor, sampling: SamplingParams, uniform: float) -> int:
    scaled = row / sampling.temperature
    return draw_from_all(scaled, scaled.logsumexp(dim=-1, keepdim=True), sampling, uniform)


@pytest.mark.parametrize(
    ("size", "spread", "list_size"), [(20, 5.0, 16384), (700, 0.1, 64), (2500, 1.0, 16384), (2500, 1.0, 64)]
)
def test_draws_what_the_host_draws(monkeypatch: pytest.MonkeyPatch, size: int, spread: float, list_size: int):
    monkeypatch.setattr(sampling, "LIST_SIZE", list_size)  # a short list does not contain the nucleus
    logits = random_logits(len(SAMPLINGS), size, spread=spread, seed=size)
    numbers = random.Random(size)
    uniforms = [numbers.random() for _ in SAMPLINGS]
    found = drawn(logits, [*SAMPLINGS], uniforms)
    for row, token_id, params, uniform in zip(logits, found, SAMPLINGS, uniforms, strict=True):
        nearby = (max(uniform - 1e-6, 0), uniform, uniform + 1e-6)
        assert token_id in {expected_draw(row, params, each) for each in nearby}


def test_draws_exactly_beyond_the_shortlist():
    size, nucleus = 4000, SamplingParams(top_p=0.95)
    row = random_logits(1, size, spread=0.2, seed=1)
    ranks = row[0].argsort(descending=True).argsort()
    uniforms = [0.3, 0.9, 0.999999]
    found = drawn(row.expand(3, size).contiguous(), [nucleus] * 3, uniforms)
    assert found == [expected_draw(row[0], nucleus, uniform) for uniform in uniforms]
    assert min(ranks[found].tolist()) > SHORTLIST_SIZE


def test_draws_in_proportion_to_probabilities():
    logits, num_rows = torch.tensor([0.5, 0.125, 0.25, 0.125]).log(), 16
    uniforms = [(index + 0.5) / num_rows for index in range(num_rows)]
    found = drawn(logits.repeat(num_rows, 1), [SamplingParams()] * num_rows, uniforms)
    assert found == [0] * 8 + [2] * 4 + [1] * 2 + [3] * 2, "from most to least likely, equal ones by id"


@pytest.mark.parametrize(
    ("params", "candidates"),
    [
        (SamplingParams(top_k=3), [1, 2, 4]),
        (SamplingParams(top_k=1), [1]),
        (SamplingParams(top_p=0.49), [1, 2]),
        (SamplingParams(min_p=1.0), [1, 2, 4, 5]),
        (SamplingParams(top_k=3, top_p=0.5), [1, 2]),
        (SamplingParams(min_p=1.0, top_k=5), [1, 2, 4, 5]),
    ],
)
def test_keeps_exactly_as_many_of_equally_likely_tokens(params: SamplingParams, candidates: list[int]):
    row = torch.tensor([-30.0, 2.0, 2.0, float("-inf"), 2.0, 2.0, float("nan")])
    num_rows = len(candidates)
    uniforms = [(index + 0.5) / num_rows for index in range(num_rows)]
    assert drawn(row.repeat(num_rows, 1), [params] * num_rows, uniforms) == candidates


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # inf - inf, which the kernel replaces
def test_rows_without_finite_logits_end():
    rows = torch.tensor([[float("-inf")] * 5, [float("nan")] * 5, [0.0, 1.0, float("inf"), 2.0, float("nan")]])
    found = drawn(rows, [SamplingParams(top_k=2, top_p=0.9)] * 3, [0.5] * 3)
    assert found == [0, 0, 2]


def test_writes_only_the_rows_that_are_drawn():
    logits, uniforms = random_logits(4, 100, spread=3.0, seed=5)[:, :60], [0.2, 0.7]
    token_ids = torch.full((4,), -1, device=DEVICE)
    draw_tokens(logits.to(DEVICE), draw_params(SAMPLINGS[:2], uniforms, rows=[3, 1], device=DEVICE), token_ids)
    assert token_ids.tolist() == [
        -1,
        expected_draw(logits[1], SAMPLINGS[1], 0.7),
        -1,
        expected_draw(logits[3], SAMPLINGS[0], 0.2),
    ]


@pytest.mark.parametrize("with_greedy", [False, True])
def test_device_samples_with_kernels_equal_host_samples(with_greedy: bool):
    params = [SamplingParams(temperature=5.0, seed=seed, logprobs=[None, 2][seed % 2]) for seed in range(4)]
    if with_greedy:
        params[1:1] = [SamplingParams(temperature=0.0, logprobs=1), SamplingParams(temperature=0.0)]
    logits = random_logits(len(params), 1500, spread=1.0, seed=9)
    on_host, on_device = (
        [SequenceSampler(each, prompt_token_ids=[1], eos_token_ids=[0]) for each in params] for _ in range(2)
    )
    expected = sample(logits.clone(), on_host)
    samples, mispredicted = DeviceSample(logits.to(DEVICE), on_device, draw_tokens).result()
    assert not mispredicted, "kernels draw from the whole row at once"
    assert [each.token_id for each in samples] == [each.token_id for each in expected]
    for found, plain in zip(samples, expected, strict=True):
        assert found.logprob == pytest.approx(plain.logprob, abs=1e-5)
        assert [token_id for token_id, _ in found.top] == [token_id for token_id, _ in plain.top]


def test_warns_if_kernels_cannot_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def fail(*_: object) -> None:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(sampling, "draw_tokens", fail)
    with caplog.at_level(logging.WARNING):
        assert choose_draw_tokens("torch", DEVICE) is None
        assert not caplog.records
        assert choose_draw_tokens("triton", DEVICE) is None
    assert "sampling with torch, which takes more launches: its kernels cannot run: out of resource" in caplog.text
