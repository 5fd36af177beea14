"""Qwen2-Audio (arXiv 2407.10759): Qwen2's decoder with an audio encoder.

Numerics follow transformers' `Qwen2AudioForConditionalGeneration` (models/qwen2_audio/modeling_qwen2_audio.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import AudioConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.models.encoders.qwen2_audio_tower import AudioTower
from glimpse.engine.worker.models.model import Model


class Qwen2Audio(Model):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.audio_tower.": "audio_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    }

    def __init__(self, text: TextConfig, audio: AudioConfig) -> None:
        super().__init__(text)
        self.tower = AudioTower(audio, text.hidden_size)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each audio input, one row per placeholder token; see `AudioTower`.

        Args:
            media: audio inputs, with features, float32 [mel bins, frames], and grids (1, mel bins, frames).
        """
        return [self.tower.encode(medium.data, medium.grid[1:], self.ops) for medium in media]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from ((f"language_model.{name}", tensor) for name, tensor in super().named_weights())
        yield from self.tower.named_weights()


def make_model(_path: Path, config: ModelConfig) -> Qwen2Audio:
    """Returns the checkpoint's model without its weights."""
    assert isinstance(config.encoder, AudioConfig)
    return Qwen2Audio(config.text, config.encoder)
