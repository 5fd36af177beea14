"""The media of a prompt as the engine is told of them. Knows where they stand and what they are, no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from glimpse.engine.model_config import AudioConfig, ModelConfig, VisionConfig
from glimpse.engine.plan import Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol import MediaInput
from glimpse.engine.text.prompt import Prompt, PromptMedia
from glimpse.media.embeddings.embeddings import Embedding, EmbeddingSpec
from glimpse.media.embeddings.tensor import TensorType
from glimpse.media.kind import MediaKind
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_processing
from glimpse.media.processing.image import Image
from glimpse.media.processing.video import Video

Medium = Image | Video | Audio | Embedding

DEFAULT_SECONDS_PER_FRAME = 0.5
"""Of a clip that has no times: the family's own tools take two frames of a second."""
MAX_SECONDS_PER_FRAME = 3600.0
"""A list of pictures may be said to be of any rate, and positions are to stay numbers that can be told apart."""


def kind_of(medium: Medium) -> MediaKind:
    """What stands for it in a prompt."""
    match medium:
        case Image():
            return MediaKind.IMAGE
        case Video():
            return MediaKind.VIDEO
        case Audio():
            return MediaKind.AUDIO
        case Embedding(kind=kind):
            return kind
        case _:
            assert_never(medium)


def embedding_spec(model: ModelConfig) -> EmbeddingSpec:
    """What embeddings in a medium's place look like. Those of a model that sees nothing have no patches to merge."""
    encoder = model.encoder
    merge_size = encoder.spatial_merge_size if isinstance(encoder, VisionConfig) else 1
    kinds = frozenset(map(MediaKind, model.placeholder_ids))
    return EmbeddingSpec(kinds=kinds, hidden_size=model.text.hidden_size, merge_size=merge_size)


def sound_processing(path: Path, model: ModelConfig) -> AudioProcessing | None:
    """How the checkpoint in this folder wants its sounds; None: it does not hear.

    Raises:
        ValueError: a file is damaged, or says something else than `config.json` does.
    """
    encoder = model.encoder
    if not isinstance(encoder, AudioConfig):
        return None
    processing = audio_processing(path)
    if processing.num_mel_bins != encoder.num_mel_bins:
        raise ValueError("the preprocessor's configuration has another feature_size than config.json num_mel_bins")
    if processing.max_samples // processing.hop != 2 * encoder.max_positions:
        raise ValueError("the preprocessor's chunk_length is not as long as config.json's max_source_positions")
    return processing


def prompt_media(media: Sequence[Medium]) -> list[PromptMedia]:
    """What a prompt must know of its media."""
    return [PromptMedia(kind=kind_of(medium), num_tokens=medium.num_tokens) for medium in media]


def media_inputs(media: Sequence[Medium], prompt: Prompt, encoder: VisionConfig | AudioConfig) -> list[MediaInput]:
    """Pairs the media with the places that the prompt gave them; both are in the order of the media.

    Args:
        media: that were loaded.
        prompt: that was made with them.
        encoder: the model's.
    """
    return [
        MediaInput(
            span=MediaSpan(
                kind=kind_of(medium),
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


def _mrope_time_interval(medium: Medium, encoder: VisionConfig | AudioConfig) -> float:
    """Returns the distance in positions between two temporal patches of a video."""
    if not isinstance(encoder, VisionConfig) or encoder.positions_per_second is None:
        return 1.0
    if kind_of(medium) is not MediaKind.VIDEO:
        return 1.0
    seconds = medium.seconds_per_frame if isinstance(medium, Video) else None
    seconds = DEFAULT_SECONDS_PER_FRAME if seconds is None else min(seconds, MAX_SECONDS_PER_FRAME)
    return encoder.positions_per_second * encoder.temporal_patch_size * seconds


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
