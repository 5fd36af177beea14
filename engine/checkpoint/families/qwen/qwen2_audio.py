"""Qwen2-Audio (arXiv 2407.10759)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_AUDIO_TEMPLATE
from glimpse.engine.checkpoint.families.reading.fields import require, rope_of, text_config
from glimpse.engine.checkpoint.families.reading.whisper import audio_of, check_processing, whisper_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import AudioConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import audio_processing
from glimpse.media.processing.media_processing import MediaProcessing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

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
_AUDIO_DEFAULTS: Mapping[str, Any] = {
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "max_source_positions": 1500,
}
"""Fields that fine-tuned checkpoints leave out (transformers, models/qwen2_audio/configuration_qwen2_audio.py)."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text: Mapping[str, Any] = {**_TEXT_DEFAULTS, **config["text_config"]}
    rope = rope_of(text)
    require("rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
    require("text_config.hidden_act", text.get("hidden_act", "silu"), "silu")
    audio: Mapping[str, Any] = {**_AUDIO_DEFAULTS, **config["audio_config"]}
    return FamilyConfig(
        text=text_config(text, config, rope),
        encoder=whisper_config(audio),
        placeholder_ids={"audio": config["audio_token_index"]},
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    processing = audio_processing(path)
    check_processing(processing, config.encoder_as(AudioConfig))
    return MediaProcessing(audio=processing)


def _largest_medium(config: ModelConfig, _num_tokens: int) -> LargestMedium:
    """Returns the longest audio."""
    encoder = config.encoder_as(AudioConfig)
    return audio_of(encoder, num_frames=2 * encoder.max_positions)


def _layout(medium: "Medium", _context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an audio input: one for four mel frames, or one for each row of embeddings."""
    _, num_bins, size = medium.grid
    return one_run(medium.kind, size if num_bins == 1 else size // 4)


QWEN2_AUDIO = FamilySpec(
    read_config=_read_config,
    module="qwen2_audio",
    fallback_template=QWEN2_AUDIO_TEMPLATE,
    slot_texts={MediaKind.AUDIO: "Audio {}: <|audio_bos|><|AUDIO|><|audio_eos|>"},
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
)
