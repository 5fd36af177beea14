"""InternVL3 (arXiv 2504.10479) and InternVL3.5 (arXiv 2508.18265): a Qwen decoder that reads images and video frames as
square tiles.

InternViT encodes each tile, squares of its patches become one row (pixel shuffle), and a norm and two products make it
an embedding. Numerics follow transformers' `InternVLForConditionalGeneration` (models/internvl/modeling_internvl.py).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import InternVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.intern_vit import InternVit
from glimpse.engine.worker.models.encoders.tiles import TileEncoder, shuffle_pixels
from glimpse.engine.worker.models.model import Model, with_decoder


class InternVL(Model):
    """A decoder and an encoder, with the names of tensors in InternVL3-hf's checkpoints."""

    decoder_prefix: ClassVar = "language_model."
    renamed_prefixes: ClassVar = with_decoder(
        decoder_prefix,
        {
            "model.language_model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
            "model.vision_tower.": "vision_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
        },
    )


class InternVLEncoder(TileEncoder):
    """InternViT, the pixel shuffle, a norm and two products."""

    def __init__(self, config: InternVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(InternVit(config, statistics), max_batch_tiles=config.max_batch_tiles)
        self.config = config
        width = config.shuffle**2 * config.width
        self.projection = GeluMLP(width, hidden_size, hidden_size, norm=nn.LayerNorm(width))

    def forward(self, tiles: Tensor, ops: Ops) -> Tensor:
        """See `TileEncoder.forward`."""
        squares = shuffle_pixels(self.tower(tiles, ops)[:, 1:], self.config.side, self.config.shuffle)
        return self.projection(squares.flatten(0, 1), ops).unflatten(0, (len(tiles), -1))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from prefixed("multi_modal_projector.", self.projection.named_weights(norm="layer_norm"))


class InternVLChat(InternVL):
    """InternVL with the tensors of `InternVLChatModel`: other names outside the decoder, and queries, keys and values
    of the encoder in one tensor."""

    renamed_prefixes: ClassVar = {}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, or those of `split_weight`; see `Decoder.named_weights`."""
        yield from ((_name_in_chat(name), tensor) for name, tensor in super().named_weights())

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        """See `Model.split_weight`."""
        if not name.startswith("vision_model.") or _QKV not in name:
            return super().split_weight(name, tensor, text)
        projections = (f".attn.{part}_proj." for part in "qkv")
        return ((name.replace(_QKV, each), part) for each, part in zip(projections, tensor.chunk(3), strict=True))


_QKV = ".attn.qkv."
_CHAT_NAMES = (
    ("vision_tower.encoder.layer.", "vision_model.encoder.layers."),
    ("vision_tower.", "vision_model."),
    (".cls_token", ".class_embedding"),
    (".position_embeddings", ".position_embedding"),
    (".patch_embeddings.projection.", ".patch_embedding."),
    (".attention.projection_layer.", ".attn.proj."),
    (".attention.", ".attn."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".lambda_", ".ls"),
    ("multi_modal_projector.layer_norm.", "mlp1.0."),
    ("multi_modal_projector.linear_1.", "mlp1.1."),
    ("multi_modal_projector.linear_2.", "mlp1.3."),
)
"""Parts of transformers' names → those of `InternVLChatModel`."""


def _name_in_chat(name: str) -> str:
    if name.startswith("language_model."):
        return name
    for ours, published in _CHAT_NAMES:
        name = name.replace(ours, published)
    return name


def make_model(path: Path, config: ModelConfig) -> InternVL:
    """See `build_model.make_model`."""
    is_chat = config.architecture == "InternVLChatModel"
    statistics = _IMAGENET if is_chat else read_statistics(path)
    encoder = InternVLEncoder(config.encoder_as(InternVisionConfig), config.text.hidden_size, statistics)
    return (InternVLChat if is_chat else InternVL)(config.text, encoder)


_IMAGENET = PixelStatistics(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""In the code of `InternVLChatModel`, which reads no file for them."""
