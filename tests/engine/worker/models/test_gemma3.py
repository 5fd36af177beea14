"""Gemma 3: its fields as published, and its sliding windows on native kernels, in batches and through `LLM`."""

from functools import partial
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.decoder import LinearScaling, SlidingAttention
from tests.checkpoints.files import write_json
from tests.checkpoints.refusals import assert_refused
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.worker.models.windows import Windows

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
    assert_refused(tmp_path, PUBLISHED_1B | change, message)


class TestWindows(Windows):
    pass
