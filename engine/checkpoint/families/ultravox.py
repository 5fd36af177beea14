"""Ultravox (github.com/fixie-ai/ultravox): Llama and other decoders that hear."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.reading.fields import require
from glimpse.engine.checkpoint.families.reading.whisper import audio_of, check_processing, whisper_config
from glimpse.engine.checkpoint.families.spec import CompanionSpec, FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import nested_decoder, nested_eos_token_ids
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import UltravoxConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.processing.audio import AudioProcessing, audio_processing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import check_fields, read_feature_extractor, read_json

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

MAX_CHUNKS = 16
"""Longer audio is truncated: 8 minutes. Bounds memory; as many chunks as vLLM encodes at once."""

_PLACEHOLDER = "<|audio|>"
_WHISPER_DEFAULTS: Mapping[str, Any] = {
    "num_mel_bins": 80,
    "d_model": 384,
    "encoder_ffn_dim": 1536,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "max_source_positions": 1500,
}
"""Fields that documents leave out (transformers, models/whisper/configuration_whisper.py)."""
_WHISPER_FFT_SIZE, _WHISPER_HOP, _WHISPER_RATE = 400, 160, 16_000
"""Values of all of Whisper's checkpoints."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    require("projector_act", config.get("projector_act", "swiglu"), "swiglu")
    require("num_projector_layers", config.get("num_projector_layers") or 0, 0)
    require("audio_latency_block_size", config.get("audio_latency_block_size"), None)
    text = nested_decoder(config)
    return FamilyConfig(
        text=text,
        encoder=UltravoxConfig(
            audio=whisper_config({**_WHISPER_DEFAULTS, **config["audio_config"]}),
            stack_factor=config.get("stack_factor", 8),
            projector_size=config.get("hidden_size", 4096),
            norm_mid=config.get("projector_ln_mid", False),
        ),
        # The encoder output replaces this token's embedding; some documents name one that has none.
        placeholder_ids={"audio": min(config.get("audio_token_index") or 32_000, text.vocab_size - 1)},
        placeholder_texts={"audio": _PLACEHOLDER},
        eos_token_ids=nested_eos_token_ids(config),
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    encoder, processing = config.encoder_as(UltravoxConfig), _audio_processing(path, config)
    check_processing(processing, encoder.audio)
    _check_processor(path, encoder)
    return MediaProcessing(
        audio=replace(processing, max_samples=MAX_CHUNKS * processing.max_samples, pads_to_max=False)
    )


def _audio_processing(path: Path, config: ModelConfig) -> AudioProcessing:
    """Reads the processing of the checkpoint, or of the one that its encoder comes from. Without both, it is Whisper's:
    published checkpoints with an encoder of their own have no such file."""
    folders = [path, *(each.path for each in config.companions if each.field == "audio_model_id")]
    for folder in folders:
        if read_feature_extractor(folder, is_optional=True):
            return audio_processing(folder)
    encoder = config.encoder_as(UltravoxConfig)
    return AudioProcessing(
        sampling_rate=_WHISPER_RATE,
        num_mel_bins=encoder.audio.num_mel_bins,
        fft_size=_WHISPER_FFT_SIZE,
        hop=_WHISPER_HOP,
        max_samples=encoder.chunk_frames * _WHISPER_HOP,
    )


def _check_processor(path: Path, encoder: UltravoxConfig) -> None:
    """Raises ValueError if the processor's document contradicts the model's, which need not say all of it."""
    file = path / "processor_config.json"
    processor = read_json(file, is_optional=True)
    expected = {
        "stack_factor": encoder.stack_factor,
        "encoder_ds_factor": 2,
        "audio_context_size": encoder.chunk_frames,
        "audio_padding": "longest",
        "audio_placeholder": _PLACEHOLDER,
    }
    check_fields(processor, file.name, expected)


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns audio of whole chunks. They are encoded one after the other."""
    encoder = config.encoder_as(UltravoxConfig)
    num_chunks = max(1, min(num_tokens // encoder.num_tokens(encoder.chunk_frames), MAX_CHUNKS))
    return audio_of(encoder.audio, num_frames=num_chunks * encoder.chunk_frames)


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an audio input, or one for each row of embeddings."""
    _, num_bins, size = medium.grid
    return one_run(medium.kind, size if num_bins == 1 else context.model.encoder_as(UltravoxConfig).num_tokens(size))


ULTRAVOX = FamilySpec(
    read_config=_read_config,
    companions={
        "text_model_id": CompanionSpec(document="text_config", prefix="language_model."),
        "audio_model_id": CompanionSpec(document="audio_config", prefix="audio_tower."),
    },
    module="ultravox",
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
)
