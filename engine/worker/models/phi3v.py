"""Phi-3-vision and Phi-3.5-vision (arXiv 2404.14219): Phi-3's decoder, which reads an image as tiles and an overview.

Numerics follow the published code of the checkpoints (`Phi3ImageEmbedding`, order "sub_glb").
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import HdVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.tiles import shuffle_pixels
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.text import TextModel
from glimpse.engine.worker.tensors.transfer import upload_bytes

_VISION = "model.vision_embed_tokens."


class HdEncoder(Encoder):
    """CLIP's encoder, separators between the lines of an image, and a projection of two layers."""

    def __init__(self, config: HdVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        width = 4 * config.vit.width
        self.tower = VisionTransformer(config.vit, statistics, f"{_VISION}img_processor.vision_model.")
        self.line_end = empty_parameter(width)
        self.overview_start = empty_parameter(width)
        self.projection = GeluMLP(width, hidden_size, hidden_size)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns the tokens of each image, [tokens, hidden_size]: its lines, a separator, and the overview's lines.

        Args:
            media: pixels are uint8 [tiles, image_size, image_size, 3], row-major, with the grid of `HdTiles`.
        """
        side = self.config.vit.image_size
        images = [upload_bytes(medium.data, self.line_end.device).view(-1, side, side, 3) for medium in media]
        grids = [(rows, columns) for rows, columns in (medium.grid for medium in media)]
        overviews = torch.stack([_overview(tiles, grid) for tiles, grid in zip(images, grids, strict=True)])
        features = self._features(torch.cat(images), ops).split([len(tiles) for tiles in images])
        of_overviews = self._features(overviews, ops).split(1)
        return [
            self.projection(
                torch.cat([self._lines(own, grid), self.overview_start[None], self._lines(last, (1, 1))]), ops
            )
            for own, grid, last in zip(features, grids, of_overviews, strict=True)
        ]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from self.tower.named_weights()
        yield f"{_VISION}sub_GN", self.line_end.data.view(1, 1, 1, -1)
        yield f"{_VISION}glb_GN", self.overview_start.data.view(1, 1, -1)
        yield from self.projection.named_weights(linears=(f"{_VISION}img_projection.0", f"{_VISION}img_projection.2"))

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`; `wte` repeats the embeddings of tokens."""
        return name == f"{_VISION}wte.weight" or self.tower.is_unused(name)

    def _features(self, images: Tensor, ops: Ops) -> Tensor:
        """Encodes images of one tile: [images, image_size, image_size, 3] → [images, side², 4 · width]"""
        batches = images.split(self.config.max_batch_tiles)
        encoded = torch.cat([self.tower(batch, ops)[:, 1:] for batch in batches])  # without the class token
        return shuffle_pixels(encoded, self.config.vit.side, 2)

    def _lines(self, features: Tensor, grid: tuple[int, int]) -> Tensor:
        """[tiles, side², 4 · width] → [lines · (columns + 1), 4 · width], each line with the separator after it."""
        side = self.config.side
        squares = features.unflatten(1, (side, side)).unflatten(0, grid)  # [rows, columns, side, side, 4 · width]
        lines = squares.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        return torch.cat([lines, self.line_end.expand(len(lines), 1, -1)], dim=1).flatten(0, 1)


def _overview(tiles: Tensor, grid: tuple[int, int]) -> Tensor:
    """Returns the whole image resized to one tile, without antialiasing as in the reference.

    Args:
        tiles: uint8 [tiles, image_size, image_size, 3]
        grid: rows and columns of tiles.

    Returns:
        float32 [image_size, image_size, 3], about from 0 to 255; not rounded.
    """
    side = tiles.shape[1]
    whole = tiles.unflatten(0, grid).permute(4, 0, 2, 1, 3).flatten(3, 4).flatten(1, 2)  # [3, height, width]
    resized = functional.interpolate(whole[None].float(), size=(side, side), mode="bicubic")
    return resized[0].permute(1, 2, 0)


def make_model(path: Path, config: ModelConfig) -> TextModel:
    """See `build_model.make_model`."""
    encoder = HdEncoder(config.encoder_as(HdVisionConfig), config.text.hidden_size, read_statistics(path))
    return TextModel(config.text, encoder)
