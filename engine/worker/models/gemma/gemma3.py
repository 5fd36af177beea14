"""Gemma 3 (arXiv 2503.19786): the decoder alone, and with a vision transformer for images.

Numerics follow transformers' models/gemma3/modeling_gemma3.py.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import Gemma3VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.tiles import TileEncoder
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.llava.llava import TOWER, Llava
from glimpse.engine.worker.models.model import Model

_PROJECTOR = "multi_modal_projector."
_NORM = f"{_PROJECTOR}mm_soft_emb_norm.weight"


class Gemma3(Model):
    """A decoder and an encoder, with the names of tensors in LLaVA's checkpoints."""

    renamed_prefixes: ClassVar = Llava.renamed_prefixes
    decoder_prefix: ClassVar = Llava.decoder_prefix

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        # The encoder's last norm is stored as those of the decoder are.
        return [(name, 1 + tensor.float())] if name == _NORM else super().split_weight(name, tensor, text)


class Gemma3Encoder(TileEncoder):
    """The vision transformer, averages over squares of patches, a norm, and the projection to the decoder's width."""

    def __init__(self, config: Gemma3VisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(VisionTransformer(config.vit, statistics, TOWER))
        self.config = config
        self.norm = RMSNorm(config.vit.width, eps=config.vit.norm_eps)
        self.projection = Linear(config.vit.width, hidden_size, bias=False)

    def forward(self, tiles: Tensor, ops: Ops) -> Tensor:
        """See `TileEncoder.forward`."""
        side = self.config.vit.side
        features = self.tower(tiles, ops).transpose(1, 2).unflatten(2, (side, side))
        pooled = functional.avg_pool2d(features, side // self.config.side).flatten(2).transpose(1, 2)
        projected = ops.norm_linear(pooled.flatten(0, 1).contiguous(), self.norm, self.projection)
        return projected.unflatten(0, (len(tiles), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield _NORM, self.norm.weight.data
        # The checkpoint's matrix is [width, hidden_size].
        yield f"{_PROJECTOR}mm_input_projection_weight", self.projection.weight.data.t()


def make_model(path: Path, config: ModelConfig) -> Model:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    if config.encoder is None:
        return Model(config.text)
    encoder = Gemma3Encoder(config.encoder_as(Gemma3VisionConfig), config.text.hidden_size, read_statistics(path))
    return Gemma3(config.text, encoder)
