"""Converts loaded media to the engine's `MediaInput`, and reads from a checkpoint how media are processed."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from glimpse.engine.model_config import AudioConfig, EncoderConfig, ModelConfig, VisionConfig
from glimpse.engine.plan import Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol import MediaInput
from glimpse.engine.text.prompt import Prompt
from glimpse.media.embeddings.embeddings import Embedding, EmbeddingSpec
from glimpse.media.embeddings.tensor import TensorType
from glimpse.media.input_loader import Medium
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_processing
from glimpse.media.processing.image import Image, ImageProcessing, image_processing
from glimpse.media.processing.video import Video, VideoProcessing, video_processing

DEFAULT_SECONDS_PER_FRAME = 0.5
"""For videos without timestamps: Qwen's own tools sample two frames per second."""
MAX_SECONDS_PER_FRAME = 3600.0
"""Requests may set any frame rate; a larger interval would make positions indistinguishable."""


def embedding_spec(model: ModelConfig) -> EmbeddingSpec:
    """Returns the shape of embeddings that may replace media. Without a vision encoder no patches are merged."""
    encoder = model.encoder
    merge_size = encoder.spatial_merge_size if isinstance(encoder, VisionConfig) else 1
    kinds = frozenset(map(MediaKind, model.placeholder_ids))
    return EmbeddingSpec(kinds=kinds, hidden_size=model.text.hidden_size, merge_size=merge_size)


def image_processing_of(path: Path, model: ModelConfig) -> ImageProcessing:
    """Returns how the checkpoint in this folder processes images; defaults if the model has no encoder.

    Raises:
        ValueError: the preprocessor's configuration is missing, damaged or not supported.
    """
    return ImageProcessing() if model.encoder is None else image_processing(path)


def video_processing_of(path: Path, model: ModelConfig) -> VideoProcessing:
    """Returns how the checkpoint in this folder processes videos; see `image_processing_of`."""
    return VideoProcessing() if model.encoder is None else video_processing(path)


def audio_processing_of(path: Path, model: ModelConfig) -> AudioProcessing | None:
    """Returns how the checkpoint in this folder processes audio; None if the model does not support it.

    Raises:
        ValueError: a preprocessor file is damaged or contradicts `config.json`.
    """
    encoder = model.encoder
    if not isinstance(encoder, AudioConfig):
        return None
    processing = audio_processing(path)
    if processing.num_mel_bins != encoder.num_mel_bins:
        raise ValueError("preprocessor_config.json: feature_size does not match num_mel_bins in config.json")
    if processing.max_samples // processing.hop != 2 * encoder.max_positions:
        raise ValueError("preprocessor_config.json: chunk_length does not match max_source_positions in config.json")
    return processing


def media_inputs(media: Sequence[Medium], prompt: Prompt, encoder: EncoderConfig | None) -> list[MediaInput]:
    """Pairs loaded media with their placeholders in the prompt.

    Args:
        media: in prompt order.
        prompt: built with them.
        encoder: the configuration of the model's encoder, if it has one.
    """
    return [
        MediaInput(
            span=MediaSpan(
                kind=medium.kind,
                start=start,
                num_tokens=medium.num_tokens,
                key=medium.key,
                grid_thw=medium.grid_thw,
                mrope_time_interval=_mrope_time_interval(medium, encoder),
            ),
            content=_content(medium),
        )
        for medium, start in zip(media, prompt.starts, strict=True)
    ]


def _mrope_time_interval(medium: Medium, encoder: EncoderConfig | None) -> float:
    """Returns the distance in positions between two temporal patches of a video."""
    if medium.kind is not MediaKind.VIDEO or not isinstance(encoder, VisionConfig) or encoder.tokens_per_second is None:
        return 1.0
    seconds = medium.seconds_per_frame if isinstance(medium, Video) else None
    seconds = DEFAULT_SECONDS_PER_FRAME if seconds is None else min(seconds, MAX_SECONDS_PER_FRAME)
    return encoder.tokens_per_second * encoder.temporal_patch_size * seconds


def _content(medium: Medium) -> MediaContent:
    match medium:
        case Image() | Video():
            return medium.pixels.data.cast("B")
        case Audio():
            return medium.features.data.cast("B")
        case Embedding():
            dtype = medium.tensor.dtype
            assert dtype is not TensorType.INT64, "embeddings are floats"
            return Embeddings(dtype=dtype.value, data=medium.tensor.data)
        case _:
            assert_never(medium)
