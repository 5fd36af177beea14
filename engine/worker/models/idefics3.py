"""Idefics3 (arXiv 2408.12637) and SmolVLM (arXiv 2504.05299): a Llama decoder that reads images and video frames as
square tiles.

SigLIP encodes each tile, squares of its patches become one row (pixel shuffle), and a projection makes it an embedding.
Numerics follow transformers' `Idefics3ForConditionalGeneration` (models/idefics3/modeling_idefics3.py), with which
`SmolVLMForConditionalGeneration` is identical. Its position indices, which are rounded from fractions, are the plain
indices of patches for the sizes of published checkpoints (26, 27 and 32 patches on each side).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.encoders import TiledVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.tiles import TileEncoder, shuffle_pixels
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.model import Model


class Idefics3(Model):
    """A decoder and an encoder, with the names of tensors in Idefics3's checkpoints."""

    renamed_prefixes: ClassVar = {"model.text_model.": "model."}


class Idefics3Encoder(TileEncoder):
    """SigLIP, the pixel shuffle and the projection."""

    def __init__(self, config: TiledVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        tower = VisionTransformer(config.vit, statistics, "model.vision_model.")
        super().__init__(tower, max_batch_tiles=config.max_batch_tiles)
        self.config = config
        self.projection = Linear(config.shuffle**2 * config.vit.width, hidden_size, bias=False)

    def forward(self, tiles: Tensor, ops: Ops) -> Tensor:
        """See `TileEncoder.forward`."""
        squares = shuffle_pixels(self.tower(tiles, ops), self.config.vit.side, self.config.shuffle)
        rows = ops.linear_add(squares.flatten(0, 1), self.projection, None)
        return rows.unflatten(0, (len(tiles), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from self.projection.named_weights("model.connector.modality_projection.proj")


def make_model(path: Path, config: ModelConfig) -> Idefics3:
    """See `build_model.make_model`."""
    encoder = Idefics3Encoder(config.encoder_as(TiledVisionConfig), config.text.hidden_size, read_statistics(path))
    return Idefics3(config.text, encoder)
