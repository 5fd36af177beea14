"""LLaVA-1.5 (arXiv 2310.03744): a vision transformer, a projection of two layers, and a decoder.

Numerics follow transformers' `LlavaForConditionalGeneration` (models/llava/modeling_llava.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import LlavaConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.transfer import upload_bytes

_TOWER = "vision_tower.vision_model."


class Llava(Model):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.vision_model.": _TOWER,
        "model.vision_tower.": _TOWER,
        _TOWER: _TOWER,
        "vision_tower.": _TOWER,
        "model.multi_modal_projector.": "multi_modal_projector.",
    }

    def __init__(self, text: TextConfig, encoder: LlavaConfig, statistics: PixelStatistics) -> None:
        super().__init__(text)
        self.encoder = LlavaEncoder(encoder, text.hidden_size, statistics)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each image, [tokens, hidden_size].

        Args:
            media: images of the encoder's size, of which one medium may have several.
        """
        # Copies: a view would keep all outputs in memory until the last is evicted.
        return [features.flatten(0, 1).clone() for features in self.encode_images(media)]

    def encode_images(self, media: Sequence[Encode]) -> Sequence[Tensor]:
        """Returns for each medium views of the features of its images, [images, tokens, hidden_size]."""
        images = [self.encoder.upload(medium.data) for medium in media]
        return self.encoder(torch.cat(images), self.ops).split([len(each) for each in images])

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from ((f"language_model.{name}", tensor) for name, tensor in super().named_weights())
        yield from self.encoder.named_weights()

    def is_unused(self, name: str) -> bool:
        """See `Model.is_unused`."""
        if name.startswith(_TOWER):
            return self.encoder.tower.is_unused(name.removeprefix(_TOWER))
        return super().is_unused(name)


class LlavaEncoder(nn.Module):
    """The vision transformer and the projection to the decoder's width."""

    def __init__(self, config: LlavaConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.tower = VisionTransformer(config.vit, statistics)
        self.linear_1 = Linear(config.vit.width, hidden_size, bias=config.projector_bias)
        self.linear_2 = Linear(hidden_size, hidden_size, bias=config.projector_bias)

    def upload(self, pixels: memoryview) -> Tensor:
        """Returns uint8 [images, image_size, image_size, 3] on the encoder's device."""
        side = self.config.vit.image_size
        return upload_bytes(pixels, self.tower.position_embedding.device).view(-1, side, side, 3)

    def forward(self, images: Tensor, ops: Ops) -> Tensor:
        """uint8 [images, image_size, image_size, 3] → [images, tokens, hidden_size]"""
        features = self.tower(images, ops)[:, int(self.config.drops_first) :]
        inner = functional.gelu(ops.linear_add(features.flatten(0, 1), self.linear_1, None))
        return ops.linear_add(inner, self.linear_2, None).unflatten(0, (len(images), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names."""
        yield from ((f"{_TOWER}{name}", tensor) for name, tensor in self.tower.named_weights())
        yield from self.linear_1.named_weights("multi_modal_projector.linear_1")
        yield from self.linear_2.named_weights("multi_modal_projector.linear_2")


def make_model(path: Path, config: ModelConfig) -> Llava:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    assert isinstance(config.encoder, LlavaConfig)
    return Llava(config.text, config.encoder, read_statistics(path))
