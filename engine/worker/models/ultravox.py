"""Ultravox (github.com/fixie-ai/ultravox): a decoder that hears through Whisper's encoder.

Numerics follow vLLM's `UltravoxModel` (model_executor/models/ultravox.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import UltravoxConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.models.encoders.ultravox_tower import UltravoxTower
from glimpse.engine.worker.models.model import Model


class Ultravox(Model):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {
        "audio_tower.model.encoder.": "audio_tower.",
        # Files of the decoder's own checkpoint may lie in the folder as they are.
        "model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    }

    def __init__(self, text: TextConfig, encoder: UltravoxConfig) -> None:
        super().__init__(text)
        self.tower = UltravoxTower(encoder, text.hidden_size)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each audio input, one row per placeholder token; see `UltravoxTower`.

        Args:
            media: audio inputs, with features, float32 [mel bins, frames], and grids (1, mel bins, frames).
        """
        return [self.tower.encode(medium.data, medium.grid[1:], self.ops) for medium in media]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from ((f"language_model.{name}", tensor) for name, tensor in super().named_weights())
        yield from self.tower.named_weights()

    def is_unused(self, name: str) -> bool:
        """See `Model.is_unused`. Whole Whisper checkpoints have a decoder too."""
        return name.startswith(("audio_tower.model.", "audio_tower.proj_out.")) or super().is_unused(name)


def make_model(_path: Path, config: ModelConfig) -> Ultravox:
    """Returns the checkpoint's model without its weights."""
    assert isinstance(config.encoder, UltravoxConfig)
    return Ultravox(config.text, config.encoder)
