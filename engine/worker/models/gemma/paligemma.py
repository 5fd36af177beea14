"""PaliGemma (arXiv 2407.07726) and ColPali (arXiv 2407.01449): a vision transformer, a projection, and a decoder.

Numerics follow transformers' models/paligemma/modeling_paligemma.py and models/colpali/modeling_colpali.py, which count
positions from 1: rotations depend on their differences alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.encoders import VitConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.tiles import TileEncoder
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.llava.llava import TOWER, Llava
from glimpse.engine.worker.models.model import Model


class PaliGemma(Model):
    """A decoder and an encoder, with the names of tensors in LLaVA's checkpoints."""

    renamed_prefixes: ClassVar = Llava.renamed_prefixes
    decoder_prefix: ClassVar = Llava.decoder_prefix


class ColPali(PaliGemma):
    """A `PaliGemma` with the names of tensors in ColPali's checkpoints."""

    renamed_prefixes: ClassVar = {
        **{f"vlm.{name}": published for name, published in Llava.renamed_prefixes.items()},
        "vlm.language_model.model.": "language_model.model.",
        "vlm.language_model.lm_head.": "language_model.lm_head.",
        "vlm.language_model.": "language_model.model.",
        "vlm.": "",
    }


class PaliGemmaEncoder(TileEncoder):
    """The vision transformer and a linear projection to the decoder's width."""

    def __init__(self, config: VitConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(VisionTransformer(config, statistics, TOWER))
        self.linear = Linear(config.width, hidden_size, bias=True)

    def forward(self, tiles: Tensor, ops: Ops) -> Tensor:
        """See `TileEncoder.forward`."""
        features = self.tower(tiles, ops).flatten(0, 1)
        return ops.linear_add(features, self.linear, None).unflatten(0, (len(tiles), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from self.linear.named_weights("multi_modal_projector.linear")


def make_model(path: Path, config: ModelConfig) -> PaliGemma:
    """See `build_model.make_model`."""
    encoder = PaliGemmaEncoder(config.encoder_as(VitConfig), config.text.hidden_size, read_statistics(path))
    kind = PaliGemma if config.token_embedding_size is None else ColPali
    return kind(config.text, encoder, token_embedding_size=config.token_embedding_size)
