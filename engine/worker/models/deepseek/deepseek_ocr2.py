"""DeepSeek-OCR-2 (arXiv 2601.20552): a decoder of DeepSeek-V2's kind with experts, which reads a page as tiles and an
overview.

SAM's encoder and a transformer make tokens of each, which one product projects. Numerics follow transformers'
`DeepseekOcr2ForConditionalGeneration` (models/deepseek_ocr2/modeling_deepseek_ocr2.py).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import SAM_REDUCTION, PageVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.models.deepseek.reading_order import ReadingOrder
from glimpse.engine.worker.models.deepseek.sam import SamTower
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.transfer import upload_bytes

_TOWER, _SAM, _PROJECTOR = "vision_tower.", "vision_tower.sam_encoder.", "multi_modal_projector."
_SEPARATOR = "view_separator"
_NAMES = {
    "blocks.": "layers.",
    ".norm": ".layer_norm",
    "patch_embed.proj.": "patch_embed.projection.",
    "neck.0.": "neck.conv1.",
    "neck.1.": "neck.layer_norm1.",
    "neck.2.": "neck.conv2.",
    "neck.3.": "neck.layer_norm2.",
    "net_2.": "proj.conv1.",
    "net_3.": "proj.conv2.",
}
"""Names in published checkpoints of parts of SAM's encoder → those in transformers."""
_NAME = re.compile("|".join(map(re.escape, _NAMES)))


class DeepseekOcr2(Model):
    """A decoder and an encoder. The decoder's tensors have the names of published checkpoints, the encoder's those of
    transformers, with which they are no decoder's."""

    renamed_prefixes: ClassVar = {
        "model.sam_model.": _SAM,
        "model.qwen2_model.model.model.": f"{_TOWER}vision_encoder.",
        "model.qwen2_model.query_768.": f"{_TOWER}query_768_resolution.",
        "model.qwen2_model.query_1024.": f"{_TOWER}query_1024_resolution.",
        "model.projector.layers.": _PROJECTOR,
        "model.view_seperator": _SEPARATOR,
        "model.language_model.": "model.",
        **{f"model.{name}": name for name in (_TOWER, _PROJECTOR, _SEPARATOR)},
    }

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        """See `Model.split_weight`."""
        if name.startswith(_SAM):
            return ((_SAM + _NAME.sub(lambda found: _NAMES[found[0]], name.removeprefix(_SAM)), tensor),)
        return super().split_weight(name.replace(".mlp.shared_experts.", ".mlp.shared_expert."), tensor, text)


class PageEncoder(Encoder):
    """SAM's encoder, the transformer behind it, and the projection."""

    def __init__(self, config: PageVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.sam = SamTower(config.sam, statistics)
        self.order = ReadingOrder(config)
        self.projection = Linear(config.width, hidden_size, bias=True)
        self.separator = empty_parameter(hidden_size)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns the rows of each image: those of its tiles, row by row, of its overview, and a separator.

        Args:
            media: pixels are uint8 [patches, patch_size, patch_size, 3], with the grid of `PageTiles`.
        """
        return [self._encode_image(medium, ops) for medium in media]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from prefixed(_SAM, self.sam.named_weights())
        yield from prefixed(_TOWER, self.order.named_weights())
        yield from self.projection.named_weights(_PROJECTOR.removesuffix("."))
        yield _SEPARATOR, self.separator.data

    def _encode_image(self, medium: Encode, ops: Ops) -> Tensor:
        rows, columns = medium.grid
        size, side = self.config.sam.patch_size, SAM_REDUCTION * self.config.overview_side
        patches = upload_bytes(medium.data, self.separator.device).view(-1, size, size, 3)
        of_tiles, overview = patches.split([len(patches) - side**2, side**2])
        encoded: list[Tensor] = []
        if rows:
            tile = SAM_REDUCTION * self.config.tile_side
            tiles = of_tiles.view(rows, tile, columns, tile, size, size, 3).transpose(1, 2).flatten(0, 1)
            encoded += [self._encode_squares(batch, ops) for batch in tiles.split(self.config.max_batch_tiles)]
        encoded.append(self._encode_squares(overview.view(1, side, side, size, size, 3), ops))
        return torch.cat([*encoded, self.separator[None]])

    def _encode_squares(self, squares: Tensor, ops: Ops) -> Tensor:
        """uint8 [squares, side, side, patch_size, patch_size, 3] → the tokens of all, [tokens, hidden_size]"""
        tokens = self.order(self.sam(squares, ops), ops)
        return ops.linear_add(tokens.flatten(0, 1), self.projection, None)


def make_model(path: Path, config: ModelConfig) -> DeepseekOcr2:
    """See `build_model.make_model`."""
    encoder = PageEncoder(config.encoder_as(PageVisionConfig), config.text.hidden_size, read_statistics(path))
    return DeepseekOcr2(config.text, encoder)
