"""Qwen2-Audio (arXiv 2407.10759)."""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.families.chatml import QWEN2_AUDIO_TEMPLATE
from glimpse.engine.families.fields import require, rope_of, text_config
from glimpse.engine.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.model_config import AudioConfig

_TEXT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "use_sliding_window": False,
}
"""Defaults for fields that published checkpoints leave out (transformers, models/qwen2/configuration_qwen2.py)."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text: Mapping[str, Any] = {**_TEXT_DEFAULTS, **config["text_config"]}
    rope = rope_of(text)
    require("rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
    audio: Mapping[str, Any] = config["audio_config"]
    require("audio_config.activation_function", audio.get("activation_function", "gelu"), "gelu")
    return FamilyConfig(
        text=text_config(text, config, rope),
        encoder=AudioConfig(
            num_mel_bins=audio["num_mel_bins"],
            width=audio["d_model"],
            intermediate_size=audio["encoder_ffn_dim"],
            num_layers=audio["encoder_layers"],
            num_heads=audio["encoder_attention_heads"],
            max_positions=audio["max_source_positions"],
        ),
        placeholder_ids={"audio": config["audio_token_index"]},
    )


QWEN2_AUDIO = FamilySpec(read_config=_read_config, module="qwen2_audio", fallback_template=QWEN2_AUDIO_TEMPLATE)
