"""A loaded engine answers as transformers does under any memory limits, and rejects invalid configurations."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glimpse.engine.core.core import Core
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Generate
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.engine.worker.loading.resolve import resolve_device
from tests.engine.harness import Prompt, make_prompt, request_of
from tests.oracles.qwen_vl import greedy_answer

PROMPTS = [make_prompt(seed, 4 + seed, (56, 84), 9, (28, 112), 3) for seed in range(4)]
NUM_TOKENS = 20
TOKEN_BYTES = 512
"""Size of the KV cache of one token: 2 layers, 2 heads of 16, float32."""


def load(path: Path, **options: Any) -> Core:
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", num_threads=1, **options)
    return load_core(config, on_progress=lambda stage, fraction: None).core


def request(request_id: str, prompt: Prompt) -> Generate:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return request_of(request_id, prompt, sampling)


def run(core: Core, prompts: list[Prompt]) -> tuple[list[list[int]], int]:
    """Returns the answers and the number of preemptions."""
    answers: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        core.submit(request(str(index), prompt))
        answers[str(index)] = []
    num_preemptions = 0
    while core.has_work:
        step = core.step()
        num_preemptions += step.stats.num_preemptions
        for event in step.events:
            assert event.error is None, event.message
            answers[event.request_id] += event.token_ids
    return list(answers.values()), num_preemptions


@pytest.mark.parametrize(
    ("options", "preempts"),
    [
        ({}, False),
        ({"max_batch_tokens": 5}, False),
        ({"max_sequences": 2, "prefix_caching": False}, False),
        ({"block_size": 4, "kv_cache_bytes": 20 * 4 * TOKEN_BYTES, "max_model_len": 64}, True),
        ({"encoder_cache_bytes": 1}, False),
    ],
)
def test_answers_match_transformers(tiny_checkpoint: Path, options: dict[str, Any], preempts: bool):
    answers, num_preemptions = run(load(tiny_checkpoint, **options), PROMPTS)
    expected = [
        greedy_answer(tiny_checkpoint, prompt.token_ids, prompt.spans, prompt.images, NUM_TOKENS).token_ids
        for prompt in PROMPTS
    ]
    assert answers == expected
    assert (num_preemptions > 0) == preempts


def test_repeated_prompt_gets_the_same_answer_from_the_cache(tiny_checkpoint: Path):
    core = load(tiny_checkpoint, block_size=8)
    first, _ = run(core, PROMPTS[:1])
    second, _ = run(core, PROMPTS[:1])
    assert first == second
    core.submit(request("cached", PROMPTS[0]))
    assert core.step().stats.num_cached_tokens > 0


def test_progress_goes_from_zero_to_one(tiny_checkpoint: Path):
    fractions: list[float] = []
    config = EngineConfig(model_path=str(tiny_checkpoint), device="cpu", num_threads=1, kv_cache_bytes=1 << 20)
    load_core(config, on_progress=lambda stage, fraction: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4096),
        ({"max_model_len": 100}, 100),
        ({"max_model_len": 10_000}, 4096),
        ({"kv_cache_bytes": 10 * 32 * TOKEN_BYTES}, 320),
    ],
)
def test_max_model_len_is_the_smallest_limit(tiny_checkpoint: Path, options: dict[str, Any], expected: int):
    config = EngineConfig(model_path=str(tiny_checkpoint), device="cpu", dtype="float32", num_threads=1, **options)
    ready = load_core(config, on_progress=lambda stage, fraction: None).ready
    assert ready.max_model_len == expected
    assert (ready.device, ready.dtype, ready.block_size) == ("cpu", "float32", 32)


def test_refuses_a_kv_cache_smaller_than_a_block(tiny_checkpoint: Path):
    with pytest.raises(CheckpointError, match=r"'--kv-cache-bytes': expected at least .*, got 100"):
        load(tiny_checkpoint, kv_cache_bytes=100)


@pytest.mark.parametrize("exponent", [57, 62])
def test_refuses_a_kv_cache_larger_than_memory(tiny_checkpoint: Path, exponent: int):
    with pytest.raises(CheckpointError, match=r"'--kv-cache-bytes': expected what fits into memory, got \d+"):
        load(tiny_checkpoint, kv_cache_bytes=1 << exponent)


def test_activations_of_8_bits_need_the_native_kernels(tiny_checkpoint: Path):
    with pytest.raises(CheckpointError, match=r"'--quantization': expected int8, int4 or fp8 with .*torch.*, got w8a8"):
        load(tiny_checkpoint, backend="torch", quantization="w8a8")


def test_refuses_cuda_without_a_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(CheckpointError, match="--device cuda: torch finds no CUDA device"):
        resolve_device("cuda")
