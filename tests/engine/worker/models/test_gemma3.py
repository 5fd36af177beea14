"""Gemma 3: its fields as published, and its sliding windows on native kernels, in batches and through `LLM`."""

from functools import partial
from pathlib import Path

import pytest
import torch

from glimpse import SamplingParams
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.decoder import LinearScaling, SlidingAttention
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.qwen2_vl import write_json
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import at_each_level, needs_kernels
from tests.engine.offline.llm_inputs import load

CHECKPOINT = partial(make_text_checkpoint, family="gemma3")
PUBLISHED_1B = {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "eos_token_id": [1, 106],
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}


def test_reads_the_fields_of_published_checkpoints(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", PUBLISHED_1B)
    config = load_model_config(tmp_path)
    text = config.text
    assert [index for index, kind in enumerate(text.layer_kinds) if kind != "sliding"] == [5, 11, 17, 23]
    assert text.sliding == SlidingAttention(window=512, rope_theta=10_000.0)
    assert (text.rope_theta, text.rope_scaling, text.max_position_embeddings) == (1_000_000.0, None, 32768)
    assert (text.score_factor, text.embedding_factor) == (256**-0.5, 1152**0.5)
    assert text.tie_word_embeddings
    assert config.eos_token_ids == (1, 106)


def test_reads_the_older_spelling_of_rotary_scaling(tmp_path: Path) -> None:
    scaling = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    write_json(tmp_path / "config.json", PUBLISHED_1B | scaling)
    assert load_model_config(tmp_path).text.rope_scaling == LinearScaling(factor=8.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_logit_softcapping": 30.0}, "'final_logit_softcapping': expected None, got 30.0"),
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping': expected None, got 50.0"),
        ({"use_bidirectional_attention": True}, "'use_bidirectional_attention': expected false, got true"),
        ({"hidden_activation": "gelu"}, "'hidden_activation': expected 'gelu_pytorch_tanh', got 'gelu'"),
        ({"attention_bias": True}, "'attention_bias': expected false, got true"),
    ],
)
def test_refuses_unsupported_configurations(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_json(tmp_path / "config.json", PUBLISHED_1B | change)
    with pytest.raises(CheckpointError, match=message):
        load_model_config(tmp_path)


def test_sequences_of_a_batch_have_windows_of_their_own(checkpoint: Path) -> None:
    """The prompts are shorter than the window of 20 tokens, longer, and much longer."""
    harness = Harness(checkpoint)
    prompts = [make_prompt(seed, length) for seed, length in ((1, 9), (2, 40), (3, 170))]
    together = [harness.begin(prompt) for prompt in prompts]
    harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in together))
    for _ in range(15):
        harness.step(*((sequence, 1) for sequence in together))
    for prompt, sequence in zip(prompts, together, strict=True):
        alone = harness.answer(harness.begin(prompt), 16)
        assert sequence.answer == alone.answer
        assert (torch.stack(sequence.logits) - torch.stack(alone.logits)).abs().max() <= 1e-4


@needs_kernels
@at_each_level
@pytest.mark.parametrize("length", [15, 300])
def test_native_kernels_answer_as_torch_before_and_beyond_the_window(
    checkpoint: Path, length: int, level: Level
) -> None:
    plain, native = Harness(checkpoint), Harness(checkpoint, torch.float32, level=level, block_size=32)
    prompt = make_prompt(4, length)
    expected, answer = (harness.answer(harness.begin(prompt), 12) for harness in (plain, native))
    assert answer.answer == expected.answer
    assert (torch.stack(answer.logits) - torch.stack(expected.logits)).abs().max() <= 1e-3


@needs_kernels
def test_llm_answers_again_from_the_prefix_cache(checkpoint: Path) -> None:
    llm = load(checkpoint, block_size=32)
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    first, again = (llm.generate("the an " * 30, sampling)[0] for _ in range(2))
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert again.num_cached_tokens > 0
