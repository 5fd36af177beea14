"""Vision encoder of Gemma 4: from uint8 pixels to the embeddings of placeholder tokens.

Numerics follow `Gemma4VisionModel` of transformers (models/gemma4/modeling_gemma4.py). The dimensions of heads of
queries and keys are in the order of `reorder_planar_heads`.
"""

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import Gemma4VisionConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.mlp import activate
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import weights_of_layers
from glimpse.engine.worker.layers.rotary import planar_rotation
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import by_frame_size, patch_positions
from glimpse.engine.worker.models.encoders.varlen_segments import Grid, VarlenSegments, frame_segments
from glimpse.engine.worker.tensors.transfer import upload_bytes

TOWER = "vision_tower."


class ClippedLinear(nn.Module):
    """A product whose inputs and outputs are clipped, unless the checkpoint has no bounds."""

    def __init__(self, in_features: int, out_features: int, *, clipped: bool) -> None:
        super().__init__()
        self.linear = Linear(in_features, out_features, bias=False)
        self.bounds = empty_parameter(4) if clipped else None  # of inputs, of outputs

    def forward(self, x: Tensor) -> Tensor:
        """[rows, in] → [rows, out]"""
        if self.bounds is None:
            return self.linear(x)
        return self.linear(x.clamp(self.bounds[0], self.bounds[1])).clamp(self.bounds[2], self.bounds[3])

    def named_weights(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights with their checkpoint names."""
        yield from self.linear.named_weights(f"{name}.linear")
        if self.bounds is not None:
            bounds = ("input_min", "input_max", "output_min", "output_max")
            yield from ((f"{name}.{bound}", self.bounds.data[index]) for index, bound in enumerate(bounds))


class Gemma4VisionTower(Encoder):
    """Encodes all images of a step in one packed batch."""

    def __init__(self, config: Gemma4VisionConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = Linear(3 * config.patch_size**2, config.width, bias=False)
        self.positions = empty_parameter(2, config.num_positions, config.width)
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_layers))
        self.statistics = empty_parameter(2, config.width) if config.standardizes else None
        self.projection = Linear(config.width, hidden_size, bias=False)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Encodes images.

        Args:
            media: at least one; pixels are uint8 [images, rows · patch_size, columns · patch_size, 3], row-major. The
                grid is the numbers of images, which have one size, and of rows and columns of patches.
            ops: backend.

        Returns:
            For each medium [images · rows · columns / pool_size², hidden_size].
        """
        order = by_frame_size([medium.grid for medium in media])
        grids = [media[index].grid for index in order]
        hidden = torch.cat([self._embed(media[index]) for index in order])
        places = torch.cat([patch_positions(grid, 1, hidden.device) for grid in grids]).flip(1)  # columns first
        rotation = planar_rotation(places, head_dim=self.config.head_dim, theta=self.config.rope_theta)
        segments = frame_segments(grids, rotation)
        for layer in self.layers:
            hidden = layer(hidden, ops, segments)
        parts = hidden.split([prod(grid) for grid in grids])
        outputs = [self._rows(part, grid) for part, grid in zip(parts, grids, strict=True)]
        return [outputs[order.index(index)] for index in range(len(media))]

    def _embed(self, medium: Encode) -> Tensor:
        """Returns the embedded patches of a medium with their positions, [patches, width]."""
        count, rows, columns = medium.grid
        side, table = self.config.patch_size, self.positions
        pixels = upload_bytes(medium.data, table.device).view(count, rows, side, columns, side, 3)
        patches = pixels.transpose(2, 3).reshape(-1, side * side * 3)
        placed_rows, placed_columns = patch_positions(medium.grid, 1, table.device).unbind(1)
        embedded = self.patch_embed((2 * (patches.float() / 255 - 0.5)).to(table.dtype))
        return embedded + (table[0][placed_columns] + table[1][placed_rows])

    def _rows(self, hidden: Tensor, grid: Grid) -> Tensor:
        """[patches, width] → [tokens, hidden_size]: averages over squares of patches, projected."""
        count, rows, columns = grid
        side = self.config.pool_size
        squares = hidden.view(count, rows // side, side, columns // side, side, -1)
        pooled = squares.float().mean(dim=(2, 4)).flatten(0, 2).to(hidden.dtype).float() * self.config.width**0.5
        if self.statistics is not None:
            bias, scale = self.statistics.float()
            pooled = (pooled - bias) * scale
        normalized = unscaled_norm(pooled.to(hidden.dtype), self.config.norm_eps)
        return self.projection(normalized)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from self.patch_embed.named_weights(f"{TOWER}patch_embedder.input_proj")
        yield f"{TOWER}patch_embedder.position_embedding_table", self.positions.data
        yield from weights_of_layers(f"{TOWER}encoder.layers.", self.layers)
        if self.statistics is not None:
            yield f"{TOWER}std_bias", self.statistics.data[0]
            yield f"{TOWER}std_scale", self.statistics.data[1]
        yield from self.projection.named_weights("embed_vision.embedding_projection")


class VisionLayer(nn.Module):
    """Attention and a gated MLP, each with a norm before and one after it."""

    def __init__(self, config: Gemma4VisionConfig) -> None:
        super().__init__()
        self.config = config
        width, heads = config.width, config.num_heads * config.head_dim
        self.norms = nn.ModuleDict({name: RMSNorm(width, eps=config.norm_eps) for name in _NORMS})
        self.head_norms = nn.ModuleDict({name: RMSNorm(config.head_dim, eps=config.norm_eps) for name in "qk"})
        sizes = {**dict.fromkeys("qkv", (width, heads)), "o": (heads, width)}
        self.attention = nn.ModuleDict(
            {name: ClippedLinear(*size, clipped=config.clipped) for name, size in sizes.items()}
        )
        sizes = {
            **dict.fromkeys(("gate", "up"), (width, config.intermediate_size)),
            "down": (config.intermediate_size, width),
        }
        self.mlp = nn.ModuleDict({name: ClippedLinear(*size, clipped=config.clipped) for name, size in sizes.items()})

    def forward(self, hidden: Tensor, ops: Ops, segments: VarlenSegments) -> Tensor:
        """[patches, width] → [patches, width]; each patch attends to all patches of its image."""
        normalized = self.norms["input_layernorm"](hidden)
        query, key, value = (
            self.attention[name](normalized).unflatten(1, (-1, self.config.head_dim)) for name in "qkv"
        )
        # Scores have no factor, where `attend_segments` multiplies by head_dim ** -0.5.
        query = self.head_norms["q"](query) * self.config.head_dim**0.5
        qkv = torch.stack([query, self.head_norms["k"](key), unscaled_norm(value, self.config.norm_eps)], dim=1)
        attended = self.attention["o"](segments.attend(qkv, ops).flatten(1))
        hidden = hidden + self.norms["post_attention_layernorm"](attended)
        normalized = self.norms["pre_feedforward_layernorm"](hidden)
        gated = activate(self.mlp["gate"](normalized), "gelu_tanh") * self.mlp["up"](normalized)
        return hidden + self.norms["post_feedforward_layernorm"](self.mlp["down"](gated))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from ((f"{name}.weight", norm.weight.data) for name, norm in _norms(self.norms))
        yield from ((f"self_attn.{name}_norm.weight", norm.weight.data) for name, norm in _norms(self.head_norms))
        for block, linears in (("self_attn", self.attention), ("mlp", self.mlp)):
            for name, linear in linears.items():
                assert isinstance(linear, ClippedLinear)
                yield from linear.named_weights(f"{block}.{name}_proj")


_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def reorder_planar_heads(tensor: Tensor, head_dim: int) -> Tensor:
    """Reorders each head's rows, [heads · head_dim, …].

    A checkpoint rotates the pairs of each half of a head by the column and by the row. `planar_rotation` has the
    frequencies of both one after the other, and `rotate` the pairs (x[i], x[i + head_dim / 2]).
    """
    return tensor.unflatten(0, (-1, 2, 2, head_dim // 4)).transpose(1, 2).flatten(0, 3)


def _norms(modules: nn.ModuleDict) -> Iterator[tuple[str, RMSNorm]]:
    for name, norm in modules.items():
        assert isinstance(norm, RMSNorm)
        yield name, norm


def unscaled_norm(x: Tensor, eps: float) -> Tensor:
    """x / rms(x), over the last dimension."""
    return functional.rms_norm(x.float(), x.shape[-1:], eps=eps).to(x.dtype)
