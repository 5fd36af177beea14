"""InternVL3 (arXiv 2504.10479) and InternVL3.5 (arXiv 2508.18265): a Qwen decoder that reads images and video frames as
square tiles.

InternViT encodes each tile, squares of its patches become one row (pixel shuffle), and a norm and two products make it
an embedding. Numerics follow transformers' `InternVLForConditionalGeneration` (models/internvl/modeling_internvl.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import InternVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.intern_vit import InternVit
from glimpse.engine.worker.models.encoders.tiles import encode_tiles, shuffle_pixels
from glimpse.engine.worker.models.model import Model


class InternVL(Model):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    }

    def __init__(self, text: TextConfig, vision: InternVisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(text)
        self.config = vision
        self.vision = InternVit(vision, statistics)
        width = vision.shuffle**2 * vision.width
        self.layer_norm = nn.LayerNorm(width)
        self.linear_1 = Linear(width, text.hidden_size, bias=True)
        self.linear_2 = Linear(text.hidden_size, text.hidden_size, bias=True)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each image or video, with the rows of one tile or frame after the other.

        Args:
            media: pixels are uint8 [tiles, image_size, image_size, 3], row-major.
        """
        return encode_tiles(
            media,
            self._encode_tiles,
            side=self.config.image_size,
            max_batch_tiles=self.config.max_batch_tiles,
            device=self.vision.position_embedding.device,
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from ((f"language_model.{name}", tensor) for name, tensor in super().named_weights())
        yield from ((f"vision_tower.{name}", tensor) for name, tensor in self.vision.named_weights())
        for name, parameter in self.layer_norm.named_parameters():
            yield f"multi_modal_projector.layer_norm.{name}", parameter.data
        yield from self.linear_1.named_weights("multi_modal_projector.linear_1")
        yield from self.linear_2.named_weights("multi_modal_projector.linear_2")

    def _encode_tiles(self, tiles: Tensor) -> Tensor:
        """uint8 [tiles, image_size, image_size, 3] → [tiles, rows, hidden_size]"""
        squares = shuffle_pixels(self.vision(tiles, self.ops), self.config.side, self.config.shuffle)
        inner = functional.gelu(self.ops.norm_linear(squares.flatten(0, 1), self.layer_norm, self.linear_1))
        return self.ops.linear_add(inner, self.linear_2, None).unflatten(0, (len(tiles), -1))


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
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    assert isinstance(config.encoder, InternVisionConfig)
    if config.architecture == "InternVLChatModel":
        return InternVLChat(config.text, config.encoder, _IMAGENET)
    return InternVL(config.text, config.encoder, read_statistics(path))


_IMAGENET = PixelStatistics(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""In the code of `InternVLChatModel`, which reads no file for them."""
