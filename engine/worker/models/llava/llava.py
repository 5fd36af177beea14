"""LLaVA-1.5 (arXiv 2310.03744): a vision transformer, a projection of two layers, and a decoder.

Numerics follow transformers' `LlavaForConditionalGeneration` (models/llava/modeling_llava.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.encoders import LlavaConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.tiles import TileEncoder
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.model import Model, with_decoder

TOWER = "vision_tower.vision_model."


class Llava(Model):
    """A decoder and an encoder, with the names of tensors in LLaVA's checkpoints."""

    decoder_prefix: ClassVar = "language_model."
    renamed_prefixes: ClassVar = with_decoder(
        decoder_prefix,
        {
            "model.language_model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
            "model.vision_tower.vision_model.": TOWER,
            "model.vision_tower.": TOWER,
            TOWER: TOWER,
            "vision_tower.": TOWER,
            "model.multi_modal_projector.": "multi_modal_projector.",
        },
    )


class LlavaEncoder(TileEncoder):
    """The vision transformer and the projection to the decoder's width."""

    def __init__(self, config: LlavaConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(VisionTransformer(config.vit, statistics, TOWER))
        self.config = config
        self.projection = GeluMLP(config.vit.width, hidden_size, hidden_size, bias=config.projector_bias)

    def forward(self, tiles: Tensor, ops: Ops) -> Tensor:
        """See `TileEncoder.forward`."""
        features = self.tower(tiles, ops)[:, int(self.config.drops_first) :]
        return self.projection(features.flatten(0, 1), ops).unflatten(0, (len(tiles), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from prefixed("multi_modal_projector.", self.projection.named_weights())


def make_model(path: Path, config: ModelConfig) -> Llava:
    """See `build_model.make_model`."""
    encoder = LlavaEncoder(config.encoder_as(LlavaConfig), config.text.hidden_size, read_statistics(path))
    return Llava(config.text, encoder)
