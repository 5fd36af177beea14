"""LFM2 (arXiv 2511.23404), and LFM2-VL: SigLIP2 encodes tiles, or an image at its own size, and a projection of two
products makes an embedding of each square of patches.

Numerics follow transformers' models/lfm2/modeling_lfm2.py and models/lfm2_vl/modeling_lfm2_vl.py.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import FlexVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.tiles import join_patches, shuffle_pixels
from glimpse.engine.worker.models.encoders.vit import VisionTransformer, resized_positions
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.transfer import upload_bytes

_NAMES = {
    "embedding_norm": "norm",
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "self_attn.q_layernorm": "self_attn.q_norm",
    "self_attn.k_layernorm": "self_attn.k_norm",
    "self_attn.out_proj": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
"""Names of a decoder's modules → those in other checkpoints."""
_MODULE = re.compile(rf"\b({'|'.join(map(re.escape, _NAMES))})\b")
_TOWER, _PROJECTOR = "vision_tower.", "multi_modal_projector."
_PATCHES = f"{_TOWER}embeddings.patch_embedding.weight"


class Lfm2(Model):
    """A decoder, with an encoder or without, with the names of tensors in LFM2's checkpoints."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "model.",
        f"model.{_TOWER}vision_model.": _TOWER,
        f"model.{_TOWER}": _TOWER,
        f"model.{_PROJECTOR}": _PROJECTOR,
    }

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        """See `Model.split_weight`. Names of the decoder change, and the order of a patch's numbers: pixel by pixel in
        checkpoints, channel by channel here and in GGUF files, where they have three dimensions. Matrices of adapters
        have none of these numbers."""
        if name == _PATCHES and isinstance(self.encoder, FlexEncoder):
            side = self.encoder.config.vit.patch_size
            if tensor.shape[1:] == (3 * side**2,):
                tensor = tensor.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)
        if name.startswith("model."):
            name = _MODULE.sub(lambda found: _NAMES[found[0]], name)
        return super().split_weight(name, tensor, text)


class FlexEncoder(Encoder):
    """SigLIP2 for images of any size, and the projection."""

    def __init__(self, config: FlexVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__()
        self.config = config
        self.tower = VisionTransformer(config.vit, statistics, _TOWER)
        sizes = (config.shuffle**2 * config.vit.width, config.projector_size, hidden_size)
        norm = nn.LayerNorm(sizes[0]) if config.projector_norm else None
        self.projection = GeluMLP(*sizes, norm=norm, bias=config.projector_bias)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns the rows of each image: those of its tiles, row by row, then of its overview.

        Args:
            media: pixels are uint8 [patches, patch_size, patch_size, 3], as in `FlexTiles`.
        """
        return [self._encode_image(medium, ops) for medium in media]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from self.tower.named_weights()
        yield from prefixed(_PROJECTOR, self.projection.named_weights(norm="layer_norm"))

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`."""
        return self.tower.is_unused(name)

    def _encode_image(self, medium: Encode, ops: Ops) -> Tensor:
        rows, columns, tile, own_rows, own_columns = medium.grid
        side = self.config.vit.patch_size
        patches = upload_bytes(medium.data, self.tower.position_embedding.device).view(-1, side, side, 3)
        of_tiles, overview = patches.split([rows * columns * tile**2, own_rows * own_columns])
        encoded: list[Tensor] = []
        if rows:
            tiles = join_patches(of_tiles, (rows, columns), (tile, tile))
            encoded += [self._encode_tiles(batch, ops) for batch in tiles.split(self.config.max_batch_tiles)]
        if own_rows:
            encoded.append(self._encode_tiles(join_patches(overview, (1, 1), (own_rows, own_columns)), ops))
        return torch.cat(encoded)

    def _encode_tiles(self, images: Tensor, ops: Ops) -> Tensor:
        """uint8 [images, height, width, 3] → [tokens of all images, hidden_size]"""
        vit = self.config.vit
        rows, columns = images.shape[1] // vit.patch_size, images.shape[2] // vit.patch_size
        table = self.tower.position_embedding
        positions = resized_positions(table, (rows, columns), mode="bilinear", antialias=True).flatten(0, 1)
        features = self.tower(images, ops, positions.to(table.dtype))
        return self.projection(shuffle_pixels(features, columns, self.config.shuffle).flatten(0, 1), ops)


def make_model(path: Path, config: ModelConfig) -> Lfm2:
    """See `build_model.make_model`."""
    if config.encoder is None:
        return Lfm2(config.text)
    vision = config.encoder_as(FlexVisionConfig)
    return Lfm2(config.text, FlexEncoder(vision, config.text.hidden_size, read_statistics(path)))
