"""Models that read text alone: logits and greedy answers match transformers for any division into steps."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from glimpse import LLM, SamplingParams
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.protocol.config import Quantization
from tests.checkpoints.files import write_json
from tests.checkpoints.refusals import assert_refused
from tests.checkpoints.text import FAMILIES, LONG_ROPE, make_text_checkpoint
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence, make_prompt
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.engine.worker.models.steps import assert_same
from tests.oracles.answers import Answer, generate

LONG = {
    "type": "longrope",
    "short_factor": LONG_ROPE["short_factor"],
    "long_factor": LONG_ROPE["long_factor"],
}
"""Rotary fields as published checkpoints of Phi-3 with a long context have them."""
NUM_TOKENS = 8
PROMPTS = [make_prompt(1, 23), make_prompt(2, 150)]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_checkpoint(tmp_path_factory.mktemp("text"), request.param)


@cache
def oracle_answer(path: Path, prompt: Prompt) -> Answer:
    """Returns what transformers answers, which several divisions into steps are compared with."""
    oracle = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return generate(oracle, prompt.token_ids, NUM_TOKENS)


def assert_agrees(sequence: ScriptedSequence, path: Path) -> None:
    assert_same(sequence, oracle_answer(path, sequence.prompt))


@pytest.fixture(scope="module")
def harness(checkpoint: Path) -> Harness:
    return Harness(checkpoint)


@pytest.mark.parametrize("prompt", PROMPTS, ids=["short", "long"])
def test_alone(harness: Harness, checkpoint: Path, prompt: Prompt) -> None:
    assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), checkpoint)


def test_in_chunks_and_from_the_prefix_cache(harness: Harness, checkpoint: Path) -> None:
    first = harness.answer(harness.begin(PROMPTS[1], snapshots=[2 * BLOCK_SIZE]), NUM_TOKENS, chunks=[7, 60])
    assert_agrees(first, checkpoint)
    again = harness.begin(PROMPTS[1], cached=first, num_cached=2 * BLOCK_SIZE)
    assert_agrees(harness.answer(again, NUM_TOKENS), checkpoint)


def published_phi3(path: Path, *, original: int) -> Path:
    """Writes a checkpoint of Phi-3 with a long context, configured as the published ones, and returns it."""
    make_text_checkpoint(path, "phi3 128k")
    config = json.loads((path / "config.json").read_bytes())
    del config["rope_parameters"]
    change = {"rope_theta": 10_000.0, "rope_scaling": LONG, "original_max_position_embeddings": original}
    write_json(path / "config.json", config | change)
    return path


@pytest.mark.parametrize(("max_model_len", "prompt"), [(200, PROMPTS[1]), (None, make_prompt(3, 220))])
def test_longrope_has_the_factors_of_the_longest_sequence(
    tmp_path: Path, max_model_len: int | None, prompt: Prompt
) -> None:
    path = published_phi3(tmp_path, original=200)
    harness = Harness(path, max_model_len=max_model_len)
    assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), path)


def test_su_is_longrope(tmp_path: Path) -> None:
    path = published_phi3(tmp_path, original=200)
    expected = load_model_config(path)
    config = json.loads((path / "config.json").read_bytes())
    write_json(path / "config.json", config | {"rope_scaling": LONG | {"type": "su"}})
    assert load_model_config(path) == expected


def test_longrope_reads_max_model_len(tmp_path: Path) -> None:
    path = published_phi3(tmp_path, original=200)
    prompt = {"prompt_token_ids": list(PROMPTS[1].token_ids)}
    answers: list[list[int]] = []
    for max_model_len in (200, 201):
        llm = LLM(path, dtype="float32", device="cpu", max_model_len=max_model_len)
        (output,) = llm.generate(prompt, SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True))
        answers.append(list(output.outputs[0].token_ids))
    harness = Harness(path, max_model_len=200)
    assert answers[0] == harness.answer(harness.begin(PROMPTS[1]), NUM_TOKENS).answer
    assert answers[1] != answers[0]


@needs_kernels
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_native_kernels_stay_near_float32(checkpoint: Path, quantization: Quantization) -> None:
    prompts = [*PROMPTS, make_prompt(3, 23)]  # rounding changes one choice of Gemma 4's experts in the last
    assert_stays_near_float32(checkpoint, prompts, torch.bfloat16, quantization=quantization, tolerance=0.1)


@pytest.mark.parametrize(
    ("family", "change", "length"),
    [
        ("mistral", {"sliding_window": 100}, 100),
        ("mistral", {"sliding_window": None}, 512),
        ("phi3", {"sliding_window": 100}, 100),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False, "layer_types": None}, 512),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True, "layer_types": None}, 100),
        ("qwen3", {"sliding_window": 100, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, 512),
        ("llama3", {"sliding_window": 100}, 512),
    ],
)
def test_a_sliding_window_bounds_the_context_window(
    tmp_path: Path, family: str, change: dict[str, object], length: int
) -> None:
    path = make_text_checkpoint(tmp_path, family)
    config = json.loads((path / "config.json").read_bytes())
    write_json(path / "config.json", config | change)
    assert load_model_config(path).text.max_position_embeddings == length


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama3", {"rope_parameters": {"rope_type": "x", "rope_theta": 1e4}}, "'longrope' or 'yarn', got 'x'"),
        (
            "phi3 128k",
            {"rope_parameters": LONG_ROPE | {"long_factor": [1.0]}},
            "long_factor': expected 8 numbers, got 1",
        ),
        ("phi3 128k", {"rope_parameters": LONG_ROPE | {"short_mscale": 1.2}}, "'rope_scaling.short_mscale'"),
        ("llama3", {"attention_bias": True}, "'attention_bias': expected false, got true"),
        ("llama3", {"mlp_bias": True}, "'mlp_bias': expected false, got true"),
        ("llama3", {"partial_rotary_factor": 0.5}, "'partial_rotary_factor': expected 1.0, got 0.5"),
        ("qwen3", {"hidden_act": "gelu"}, "'hidden_act': expected 'silu', got 'gelu'"),
    ],
)
def test_refuses_unsupported_configurations(
    tmp_path: Path, family: str, change: dict[str, object], message: str
) -> None:
    path = make_text_checkpoint(tmp_path, family)
    config = json.loads((path / "config.json").read_bytes())
    assert_refused(path, config | change, message)
