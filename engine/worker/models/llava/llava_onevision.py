"""LLaVA-OneVision (arXiv 2408.03326): LLaVA with the tiles of an image and the frames of a video.

Numerics follow transformers' `LlavaOnevisionForConditionalGeneration`
(models/llava_onevision/modeling_llava_onevision.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.llava.llava import Llava, LlavaEncoder
from glimpse.media.kind import MediaKind


class LlavaOneVision(Llava):
    """A decoder and an encoder, with the names of tensors in LLaVA-OneVision's checkpoints."""

    renamed_prefixes: ClassVar = {**Llava.renamed_prefixes, "model.image_newline": "image_newline"}


class LlavaOneVisionEncoder(LlavaEncoder):
    """LLaVA's encoder, whose features are joined to those of whole images and videos."""

    def __init__(self, config: LlavaOneVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(config.tower, hidden_size, statistics)
        self.vision = config
        self.image_newline = empty_parameter(hidden_size)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns the encoder output of each image or video, [tokens, hidden_size].

        Args:
            media: an image is its overview and then its tiles, row by row, with the grid of `num_image_tokens` of
                `LlavaOneVisionConfig`; a video is its frames. All have the encoder's size.
        """
        parts = self.features(media, ops)
        return [self._joined(medium, part) for medium, part in zip(media, parts, strict=True)]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield "image_newline", self.image_newline.data

    def _joined(self, medium: Encode, features: Tensor) -> Tensor:
        """[tiles or frames, patches, hidden_size] → [tokens, hidden_size]"""
        newline = self.image_newline[None]
        if medium.kind is MediaKind.VIDEO:
            return torch.cat([self._pooled(features), newline])
        tiles, tiles_in_row, rows, columns = medium.grid
        if not tiles:
            return torch.cat([features[0], newline])
        whole = self._without_padding(features[1:], (tiles, tiles_in_row), (rows, columns))  # [rows, columns, width]
        reduced = self.vision.reduced(rows, columns)
        if reduced != (rows, columns):
            whole = _resized(whole[None], reduced)[0]
        lines = torch.cat([whole, newline.expand(len(whole), 1, -1)], dim=1)
        return torch.cat([features[0], lines.flatten(0, 1)])

    def _without_padding(self, tiles: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """[tiles, patches, width] → [rows, columns, width], the middle `size` of all rows and columns."""
        side = self.vision.tower.vit.side
        squares = tiles.reshape(*grid, side, side, -1).transpose(1, 2)  # [tiles, side, tiles in a row, side, width]
        whole = squares.flatten(2, 3).flatten(0, 1)
        top, left = (whole.shape[0] - size[0]) // 2, (whole.shape[1] - size[1]) // 2
        return whole[top : top + size[0], left : left + size[1]]

    def _pooled(self, frames: Tensor) -> Tensor:
        """[frames, patches, width] → [tokens, width]: about a quarter of the patches."""
        side, smaller = self.vision.tower.vit.side, self.vision.video_side
        return _resized(frames.unflatten(1, (side, side)), (smaller, smaller)).flatten(0, 2)


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """[images, rows, columns, width] → [images, *size, width], bilinear."""
    return functional.interpolate(x.permute(0, 3, 1, 2), size, mode="bilinear").permute(0, 2, 3, 1)


def make_model(path: Path, config: ModelConfig) -> LlavaOneVision:
    """See `build_model.make_model`."""
    vision = config.encoder_as(LlavaOneVisionConfig)
    encoder = LlavaOneVisionEncoder(vision, config.text.hidden_size, read_statistics(path))
    return LlavaOneVision(config.text, encoder)
