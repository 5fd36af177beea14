"""Whisper's encoder (arXiv 2212.04356) in the documents of models that hear through it."""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.checkpoint.families.reading.fields import require
from glimpse.engine.checkpoint.families.spec import LargestMedium
from glimpse.engine.checkpoint.model_config.encoders import AudioConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import AudioProcessing


def whisper_config(audio: Mapping[str, Any]) -> AudioConfig:
    """Reads an `audio_config`.

    Raises:
        KeyError: a field is missing.
        CheckpointError: a value is not supported.
    """
    require("audio_config.activation_function", audio.get("activation_function", "gelu"), "gelu")
    return AudioConfig(
        num_mel_bins=audio["num_mel_bins"],
        width=audio["d_model"],
        intermediate_size=audio["encoder_ffn_dim"],
        num_layers=audio["encoder_layers"],
        num_heads=audio["encoder_attention_heads"],
        max_positions=audio["max_source_positions"],
    )


def check_processing(processing: AudioProcessing, encoder: AudioConfig) -> None:
    """
    Raises:
        ValueError: features of the extractor do not fit the encoder.
    """
    if processing.num_mel_bins != encoder.num_mel_bins:
        raise ValueError("preprocessor_config.json: feature_size does not match num_mel_bins in config.json")
    if processing.max_samples // processing.hop != 2 * encoder.max_positions:
        raise ValueError("preprocessor_config.json: chunk_length does not match max_source_positions in config.json")


def audio_of(encoder: AudioConfig, *, num_frames: int) -> LargestMedium:
    """Returns audio of so many frames, which are encoded in parts of at most `max_positions` positions."""
    return LargestMedium(
        kind=MediaKind.AUDIO,
        grid=(1, encoder.num_mel_bins, num_frames),
        num_bytes=4 * encoder.num_mel_bins * num_frames,
        num_positions=encoder.max_positions,
        width=encoder.width,
        intermediate_size=encoder.intermediate_size,
    )
