"""Idefics3 (arXiv 2408.12637) and SmolVLM (arXiv 2504.05299): a Llama decoder that reads images and video frames as
square tiles.

SigLIP encodes each tile, squares of its patches become one row (pixel shuffle), and a projection makes it an embedding.
Numerics follow transformers' `Idefics3ForConditionalGeneration` (models/idefics3/modeling_idefics3.py), with which
`SmolVLMForConditionalGeneration` is identical. Its position indices, which are rounded from fractions, are the plain
indices of patches for the sizes of published checkpoints (26, 27 and 32 patches on each side).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import TiledVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.tiles import encode_tiles, shuffle_pixels
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.model import Model


class Idefics3(Model):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {"model.text_model.": "model."}

    def __init__(self, text: TextConfig, vision: TiledVisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(text)
        self.config = vision
        self.vision = VisionTransformer(vision.vit, statistics)
        self.projection = Linear(vision.shuffle**2 * vision.vit.width, text.hidden_size, bias=False)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each image or video, with the rows of one tile or frame after the other.

        Args:
            media: pixels are uint8 [tiles, image_size, image_size, 3], row-major.
        """
        return encode_tiles(
            media,
            self._encode_tiles,
            side=self.config.vit.image_size,
            max_batch_tiles=self.config.max_batch_tiles,
            device=self.vision.position_embedding.device,
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from super().named_weights()
        yield from ((f"{_VISION}{name}", tensor) for name, tensor in self.vision.named_weights())
        yield from self.projection.named_weights("model.connector.modality_projection.proj")

    def is_unused(self, name: str) -> bool:
        """Whether a checkpoint may have a tensor of this checkpoint name that the model does not compute with."""
        own = name.removeprefix(_VISION)
        return super().is_unused(name) or (own != name and self.vision.is_unused(own))

    def _encode_tiles(self, tiles: Tensor) -> Tensor:
        """uint8 [tiles, image_size, image_size, 3] → [tiles, rows, hidden_size]"""
        squares = shuffle_pixels(self.vision(tiles, self.ops), self.config.vit.side, self.config.shuffle)
        rows = self.ops.linear_add(squares.flatten(0, 1), self.projection, None)
        return rows.unflatten(0, (len(tiles), -1))


_VISION = "model.vision_model."


def make_model(path: Path, config: ModelConfig) -> Idefics3:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    assert isinstance(config.encoder, TiledVisionConfig)
    return Idefics3(config.text, config.encoder, read_statistics(path))
