"""Gemma 3 (arXiv 2503.19786): the decoder alone, and with a vision transformer for images.

Numerics follow transformers' models/gemma3/modeling_gemma3.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import Gemma3VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.transfer import upload_bytes

_TOWER = "vision_tower.vision_model."
_PROJECTOR = "multi_modal_projector."


class Gemma3TextModel(Model):
    """A decoder whose checkpoints store the weights of norms minus 1.

    The factor of the queries goes into the weights of their norm, since a rotation does not change it.
    """

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        if name.startswith(_TOWER) or not name.endswith("norm.weight"):
            return ((name, tensor),)
        weight = 1 + tensor.float()
        return ((name, weight * text.query_factor if name.endswith("q_norm.weight") else weight),)


class Gemma3(Gemma3TextModel):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.vision_model.": _TOWER,
        "model.vision_tower.": _TOWER,
        _TOWER: _TOWER,
        "vision_tower.": _TOWER,
        f"model.{_PROJECTOR}": _PROJECTOR,
    }

    def __init__(self, text: TextConfig, encoder: Gemma3VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(text)
        self.encoder = Gemma3Encoder(encoder, text.hidden_size, statistics)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each image, [tokens, hidden_size]. One medium may have several images."""
        images = [self.encoder.upload(medium.data) for medium in media]
        features = self.encoder(torch.cat(images), self.ops).split([len(each) for each in images])
        # Copies: a view would keep all outputs in memory until the last is evicted.
        return [each.flatten(0, 1).clone() for each in features]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from ((f"language_model.{name}", tensor) for name, tensor in super().named_weights())
        yield from self.encoder.named_weights()

    def is_unused(self, name: str) -> bool:
        """See `Model.is_unused`."""
        if name.startswith(_TOWER):
            return self.encoder.tower.is_unused(name.removeprefix(_TOWER))
        return super().is_unused(name)


class Gemma3Encoder(nn.Module):
    """The vision transformer, averages over squares of patches, a norm, and the projection to the decoder's width."""

    def __init__(self, config: Gemma3VisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.tower = VisionTransformer(config.vit, statistics)
        self.norm = RMSNorm(config.vit.width, eps=config.vit.norm_eps)
        self.projection = Linear(config.vit.width, hidden_size, bias=False)

    def upload(self, pixels: memoryview) -> Tensor:
        """Returns uint8 [images, image_size, image_size, 3] on the encoder's device."""
        side = self.config.vit.image_size
        return upload_bytes(pixels, self.tower.position_embedding.device).view(-1, side, side, 3)

    def forward(self, images: Tensor, ops: Ops) -> Tensor:
        """uint8 [images, image_size, image_size, 3] → [images, tokens, hidden_size]"""
        side = self.config.vit.side
        features = self.tower(images, ops).transpose(1, 2).unflatten(2, (side, side))
        pooled = functional.avg_pool2d(features, side // self.config.side).flatten(2).transpose(1, 2)
        projected = ops.norm_linear(pooled.flatten(0, 1).contiguous(), self.norm, self.projection)
        return projected.unflatten(0, (len(images), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names."""
        yield from ((f"{_TOWER}{name}", tensor) for name, tensor in self.tower.named_weights())
        yield f"{_PROJECTOR}mm_soft_emb_norm.weight", self.norm.weight.data
        # The checkpoint's matrix is [width, hidden_size].
        yield f"{_PROJECTOR}mm_input_projection_weight", self.projection.weight.data.t()


def make_model(path: Path, config: ModelConfig) -> Gemma3TextModel:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    if config.encoder is None:
        return Gemma3TextModel(config.text)
    assert isinstance(config.encoder, Gemma3VisionConfig)
    return Gemma3(config.text, config.encoder, read_statistics(path))
