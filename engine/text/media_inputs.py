"""The media of a prompt as the engine is told of them. Knows where they stand and what they are, no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from engine.config import AudioConfig, ModelConfig, VisionConfig
from engine.plan import Embeddings, MediaContent, MediaKind
from engine.protocol import MediaInput
from engine.text.prompt import Prompt, PromptMedia
from media.audio import AudioProcessing, Sound, audio_processing
from media.clip import Clip
from media.embeddings import EmbeddedKind, Embedding, EmbeddingForm
from media.image import Image
from media.tensor import TensorType

Medium = Image | Clip | Sound | Embedding


def kind_of(medium: Medium) -> MediaKind:
    """What stands for it in a prompt."""
    match medium:
        case Image():
            return MediaKind.IMAGE
        case Clip():
            return MediaKind.VIDEO
        case Sound():
            return MediaKind.AUDIO
        case Embedding(kind=kind):
            return MediaKind(kind)
        case _:
            assert_never(medium)


def embedding_form(model: ModelConfig) -> EmbeddingForm:
    """What embeddings in a medium's place look like. Those of a model that sees nothing have no patches to merge."""
    encoder = model.encoder
    merge_size = encoder.spatial_merge_size if isinstance(encoder, VisionConfig) else 1
    kinds = frozenset(map(EmbeddedKind, model.placeholder_ids))
    return EmbeddingForm(kinds=kinds, hidden_size=model.text.hidden_size, merge_size=merge_size)


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


def media_inputs(media: Sequence[Medium], prompt: Prompt) -> list[MediaInput]:
    """Pairs the media with the places that the prompt gave them; both are in the order of the media."""
    return [
        MediaInput(
            kind=kind_of(medium),
            start=start,
            num_tokens=medium.num_tokens,
            key=medium.key,
            grid_thw=medium.grid_thw,
            content=_content(medium),
        )
        for medium, start in zip(media, prompt.starts, strict=True)
    ]


def _content(medium: Medium) -> MediaContent:
    match medium:
        case Image() | Clip():
            return medium.pixels.data.cast("B")
        case Sound():
            return medium.features.data.cast("B")
        case Embedding():
            dtype = medium.tensor.dtype
            assert dtype is not TensorType.INT64, "embeddings are floats"
            return Embeddings(dtype=dtype.value, data=medium.tensor.data)
        case _:
            assert_never(medium)
