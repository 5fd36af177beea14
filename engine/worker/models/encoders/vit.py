"""A vision transformer (arXiv 2010.11929) for images of one fixed size, as in CLIP (arXiv 2103.00020) and SigLIP
(arXiv 2303.15343): from uint8 pixels to the features of patches. Where a model gives the embeddings of its patches'
positions, images may have any size.

Numerics follow transformers' `CLIPVisionModel` (models/clip/modeling_clip.py) and `SiglipVisionModel`
(models/siglip/modeling_siglip.py). Models put their own projection behind it.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import SquareVitConfig, VitConfig
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.mlp import PlainMLP
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, normalize
from glimpse.engine.worker.layers.quantized import named_tensors, prefixed, weights_of_layers


class SquareVit(nn.Module):
    """Encodes images in one batch. It has only the layers that its output needs."""

    def __init__(self, config: SquareVitConfig, statistics: PixelStatistics, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.statistics = statistics
        width = config.width
        # Equivalent to the reference implementation's Conv2d, whose stride equals its kernel size.
        self.patch_embedding = Linear(3 * config.patch_size**2, width, bias=config.patch_bias)
        self.class_embedding = empty_parameter(width) if config.class_token else None
        self.position_embedding = empty_parameter(config.num_positions, width)
        self.pre_norm = nn.LayerNorm(width, eps=config.norm_eps) if config.pre_norm else None
        self.layers = nn.ModuleList(layers)
        self.post_norm = nn.LayerNorm(width, eps=config.norm_eps) if config.post_norm else None

    def forward(self, images: Tensor, ops: Ops, positions: Tensor | None = None) -> Tensor:
        """Encodes images.

        Args:
            images: [images, height, width, 3], uint8 or floats from 0 to 255, on the device of the weights;
                `image_size` in height and width without `positions`.
            positions: [patches of an image, width], embeddings of their positions; None for the learned ones in order.

        Returns:
            [images, positions, width]: features of the class token, if there is one, then of the patches, row by row.
        """
        return self.finish(self.compute(self.embed(images, positions), ops))

    def embed(self, images: Tensor, positions: Tensor | None) -> Tensor:
        """Returns the input of the layers: [images, height, width, 3] → [images, positions, width]"""
        dtype = self.position_embedding.dtype
        patches = normalize(cut_patches(images, self.config.patch_size), self.statistics).flatten(1)
        hidden = self.patch_embedding(patches.to(dtype)).unflatten(0, (len(images), -1))
        if self.class_embedding is not None:
            hidden = torch.cat([self.class_embedding.expand(len(images), 1, -1), hidden], dim=1)
        hidden = hidden + (self.position_embedding if positions is None else positions)
        return hidden if self.pre_norm is None else self.pre_norm(hidden)

    def compute(self, hidden: Tensor, ops: Ops, start: int = 0, stop: int | None = None) -> Tensor:
        """Computes the layers from `start` to before `stop`: [images, positions, width] → the same."""
        rows = hidden.flatten(0, 1)
        for layer in self.layers[start:stop]:
            rows = layer(rows, ops, len(hidden))
        return rows.unflatten(0, (len(hidden), -1))

    def finish(self, hidden: Tensor) -> Tensor:
        """Returns what the last layer's output becomes, of the same shape."""
        return hidden if self.post_norm is None else self.post_norm(hidden)

    def embedding_weights(self, patches: str, class_token: str, positions: str) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights of `embed` without the norm, with names that begin with these."""
        side = self.config.patch_size
        yield f"{patches}.weight", self.patch_embedding.weight.data.view(-1, 3, side, side)
        if self.patch_embedding.bias is not None:
            yield f"{patches}.bias", self.patch_embedding.bias.data
        if self.class_embedding is not None:
            yield class_token, self.class_embedding.data
        yield positions, self.position_embedding.data


class VisionTransformer(SquareVit):
    """The transformer of CLIP and SigLIP."""

    def __init__(self, config: VitConfig, statistics: PixelStatistics, prefix: str = "") -> None:
        """`prefix`: what checkpoints put before the names of its tensors."""
        super().__init__(config, statistics, (VitLayer(config) for _ in range(config.num_layers)))
        self.prefix = prefix

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; matrices of fused linears are views."""
        yield from prefixed(self.prefix, self._own_weights())

    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        names = ("patch_embedding", "class_embedding", "position_embedding.weight")
        yield from prefixed("embeddings.", self.embedding_weights(*names))
        # The published name is misspelled.
        for name, norm in (("pre_layrnorm", self.pre_norm), ("post_layernorm", self.post_norm)):
            if norm is not None:
                yield from named_tensors(norm, name)
        yield from weights_of_layers("encoder.layers.", self.layers)

    def is_unused(self, name: str) -> bool:
        """Whether a checkpoint may have a tensor of this checkpoint name on which the output does not depend: later
        layers, a norm or a pooling head after them, or stored indices of positions."""
        if not name.startswith(self.prefix):
            return False
        own = name.removeprefix(self.prefix)
        parts = own.split(".")
        if own.startswith("encoder.layers."):
            return int(parts[2]) >= self.config.num_layers
        return (
            parts[0] == "head"
            or own == "embeddings.position_ids"
            or (parts[0] == "post_layernorm" and self.post_norm is None)
        )


class VitLayer(nn.Module):
    """Bidirectional attention and feed-forward, each preceded by a LayerNorm."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.layer_norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.qkv_proj = Linear(width, (width, width, width), bias=True)
        self.out_proj = Linear(width, width, bias=True)
        self.layer_norm2 = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = PlainMLP(width, config.intermediate_size, activation=config.activation)

    def forward(self, hidden: Tensor, ops: Ops, num_images: int) -> Tensor:
        """[images · positions, width] → the same; each position attends to those of its image."""
        qkv = ops.norm_linear(hidden, self.layer_norm1, self.qkv_proj).unflatten(-1, (3, self.num_heads, -1))
        attended = ops.attend_segments(qkv, None, num_images)
        hidden = ops.linear_add(attended.flatten(1), self.out_proj, hidden)
        return ops.norm_mlp_add(hidden, self.layer_norm2, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from named_tensors(self.layer_norm1, "layer_norm1")
        yield from named_tensors(self.layer_norm2, "layer_norm2")
        yield from self.qkv_proj.named_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield from self.out_proj.named_weights("self_attn.out_proj")
        yield from prefixed("mlp.", self.mlp.named_weights())


def resized_positions(
    table: Tensor,
    size: tuple[int, int],
    *,
    mode: Literal["bilinear", "bicubic"],
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resizes learned positions as an image is: [side · side, width] → float32 [rows, columns, width]

    Args:
        size: rows and columns.
        align_corners: the outer positions stay at the corners, instead of corners of pixels being edges of the image.
    """
    side = round(len(table) ** 0.5)
    image = table.float().T.view(1, -1, side, side)
    resized = functional.interpolate(image, size, mode=mode, align_corners=align_corners, antialias=antialias)
    return resized[0].permute(1, 2, 0)


def cut_patches(images: Tensor, side: int) -> Tensor:
    """[images, height, width, 3] → [images · patches, 3, side²], row by row.

    What is left of the height and width after whole patches is cut off, as by a convolution without padding.
    """
    rows, columns = images.shape[1] // side, images.shape[2] // side
    whole = images[:, : rows * side, : columns * side]
    squares = whole.reshape(len(images), rows, side, columns, side, 3)
    return squares.permute(0, 1, 3, 5, 2, 4).reshape(-1, 3, side**2)
