"""The trained network: Qwen2-VL's architecture over packed tokens, without a cache.

Parameters have the names of published checkpoints, are float32, and are cast on use. Numerics follow
`engine/worker/models/qwen_vl.py`, which serves the checkpoint.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.worker.layers.rotary import Rotation, multimodal_rotation, planar_rotation
from models.training.learning.blocks import Compute, Layout, attend
from models.training.learning.pixels import NUM_FEATURES, SIDE, spatial_features


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a network. Defaults: the embedded checkpoint's."""

    vocab_size: int = 1792
    """Rows of the embedding, which is tied to the output head."""
    hidden_size: int = 256
    """Width of the decoder."""
    intermediate_size: int = 640
    num_layers: int = 5
    num_heads: int = 4
    num_kv_heads: int = 2
    rope_theta: float = 10_000.0
    """Base of the wavelengths; small, because prompts are short."""
    mrope_section: tuple[int, int, int] = (8, 12, 12)
    max_position_embeddings: int = 8192
    vision_depth: int = 4
    vision_width: int = 256
    vision_heads: int = 4
    vision_mlp_ratio: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMedia:
    """Patches of images and videos; those of an image, or of a temporal patch of a video, are consecutive."""

    patches: Tensor
    """uint8 [patches, 2 · PATCH_VALUES]: channels, frames, rows, columns; perhaps more than the runs have."""
    positions: Tensor
    """int64 [patches, 2]: row and column of each patch."""
    layout: Layout
    """Segments are images and temporal patches of videos."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedText:
    """Consecutive sequences of tokens, with padding at the end."""

    token_ids: Tensor
    """int64 [tokens]"""
    positions: Tensor
    """int64 [3, tokens]"""
    layout: Layout
    """Segments are sequences."""
    media_tokens: Tensor
    """int64 [media tokens]: which of the tokens are placeholders."""
    media_rows: Tensor
    """int64 [media tokens]: the row of the encoder's output of each."""


class Network(nn.Module):
    """The whole model."""

    def __init__(self, sizes: Sizes, compute: Compute) -> None:
        super().__init__()
        self.sizes = sizes
        self.visual = VisionTower(sizes, compute)
        self.model = Decoder(sizes, compute)

    def forward(self, text: PackedText, rows: Tensor, predicted: Tensor) -> Tensor:
        """Scores the successors of some tokens.

        Args:
            text: the sequences.
            rows: the output of `visual`, [merged rows, hidden_size].
            predicted: int64 [answers]: the tokens whose successors are scored.

        Returns:
            float32 [answers, vocab_size]
        """
        return self.model(text, rows, predicted)


class VisionTower(nn.Module):
    """Encodes patches to the rows that replace placeholder tokens."""

    def __init__(self, sizes: Sizes, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        self.head_dim = sizes.vision_width // sizes.vision_heads
        self.patch_embed = PatchEmbed(sizes.vision_width)
        self.blocks = nn.ModuleList(VisionBlock(sizes) for _ in range(sizes.vision_depth))
        self.merger = PatchMerger(sizes.vision_width, sizes.hidden_size)

    def forward(self, media: PackedMedia) -> Tensor:
        """[patches / 4, hidden_size of the decoder]"""
        hidden = self.patch_embed(media.patches, self.compute.dtype)  # [patches, width]
        rotation = planar_rotation(media.positions, head_dim=self.head_dim)
        for block in self.blocks:
            hidden = block(hidden, rotation, media.layout, self.compute)
        return self.compute.merge(hidden, *self.merger.parameters())


class PatchEmbed(nn.Module):
    """The patch embedding, learnt in terms of spatial frequencies.

    Neighbouring pixels are nearly equal, so learning from them directly is slow; normalised frequencies are nearly
    independent. The checkpoint stores the product of both.
    """

    features: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("features", spatial_features(), persistent=False)  # [NUM_FEATURES, PATCH_VALUES]
        scale = NUM_FEATURES**-0.5
        self.mean = nn.Parameter(torch.randn(width, NUM_FEATURES) * scale)
        """The mean of the two frames."""
        self.change = nn.Parameter(torch.randn(width, NUM_FEATURES) * scale)
        """Half the difference between the second frame and the first."""

    def forward(self, patches: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 [patches, 2 · PATCH_VALUES] → [patches, width]"""
        return functional.linear(normalise(patches, dtype), self.weight().to(dtype))

    def stored(self) -> Tensor:
        """float32 [width, channels, frames, side, side], as the checkpoint has it."""
        return self.weight().detach().view(len(self.mean), 3, 2, SIDE, SIDE)

    def learn_again(self, stored: Tensor) -> None:
        """Loads what `stored` returned, as closely as the kept frequencies allow."""
        first, second = stored.transpose(1, 2).flatten(2).unbind(dim=1)  # [width, PATCH_VALUES] each
        back = torch.linalg.pinv(self.features.double()).float()  # [PATCH_VALUES, NUM_FEATURES]
        self.mean.data = (first + second) @ back
        self.change.data = (second - first) @ back

    def weight(self) -> Tensor:
        """[width, 2 · PATCH_VALUES]"""
        mean, change = self.mean @ self.features, self.change @ self.features
        frames = torch.stack([(mean - change) / 2, (mean + change) / 2], dim=1)  # [width, frame, PATCH_VALUES]
        return frames.unflatten(2, (3, -1)).transpose(1, 2).flatten(1)


class VisionBlock(nn.Module):
    """Attention and feed-forward, each after a LayerNorm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner = sizes.vision_width, sizes.vision_width * sizes.vision_mlp_ratio
        self.num_heads = sizes.vision_heads
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"qkv": _linear(width, 3 * width), "proj": _linear(width, width, residual=True)})
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"fc1": _linear(width, inner), "fc2": _linear(inner, width, residual=True)})

    def forward(self, hidden: Tensor, rotation: Rotation, layout: Layout, compute: Compute) -> Tensor:
        """[patches, width] → [patches, width]"""
        qkv = self.attn["qkv"]
        query, key, value = compute.vision_project(
            hidden, rotation.cos, rotation.sin, *self.norm1.parameters(), qkv.weight, qkv.bias, self.num_heads
        )
        attended = attend(query, key, value, layout, compute, causal=False)
        return compute.vision_finish(
            hidden,
            attended,
            *self.attn["proj"].parameters(),
            *self.norm2.parameters(),
            *self.mlp["fc1"].parameters(),
            *self.mlp["fc2"].parameters(),
        )


class PatchMerger(nn.Module):
    """Merges four patches into one decoder row."""

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.ln_q = nn.LayerNorm(width)
        self.mlp = nn.Sequential(_linear(4 * width, 4 * width), nn.GELU(), _linear(4 * width, hidden_size))


class Decoder(nn.Module):
    """The language model; its embedding is its output head."""

    def __init__(self, sizes: Sizes, compute: Compute) -> None:
        super().__init__()
        self.sizes = sizes
        self.compute = compute
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.num_layers))
        self.norm = Scale(sizes.hidden_size)

    def forward(self, text: PackedText, rows: Tensor, predicted: Tensor) -> Tensor:
        """See `Network.forward`."""
        sizes, dtype = self.sizes, self.compute.dtype
        hidden = self.embed_tokens(text.token_ids).to(dtype)  # [tokens, hidden_size]
        hidden = hidden.index_put((text.media_tokens,), rows[text.media_rows].to(dtype))
        rotation = multimodal_rotation(
            text.positions,
            head_dim=sizes.hidden_size // sizes.num_heads,
            theta=sizes.rope_theta,
            section=sizes.mrope_section,
        )
        *first, last = self.layers
        for layer in first:
            hidden = layer(hidden, rotation, text.layout, self.compute)
        hidden = last(hidden, rotation, text.layout, self.compute, predicted)
        return self.compute.logits(hidden, self.norm.weight, self.embed_tokens.weight)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after an RMSNorm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner = sizes.hidden_size, sizes.intermediate_size
        keys = width // sizes.num_heads * sizes.num_kv_heads
        self.num_heads, self.num_kv_heads = sizes.num_heads, sizes.num_kv_heads
        self.input_layernorm = Scale(width)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": _linear(width, width),
                "k_proj": _linear(width, keys),
                "v_proj": _linear(width, keys),
                "o_proj": _linear(width, width, bias=False, residual=True),
            }
        )
        self.post_attention_layernorm = Scale(width)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": _linear(width, inner, bias=False),
                "up_proj": _linear(width, inner, bias=False),
                "down_proj": _linear(inner, width, bias=False, residual=True),
            }
        )

    def forward(
        self, hidden: Tensor, rotation: Rotation, layout: Layout, compute: Compute, questions: Tensor | None = None
    ) -> Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size], or of the tokens that are asked for."""
        attention: Any = self.self_attn
        query, key, value = compute.text_project(
            hidden,
            rotation.cos,
            rotation.sin,
            self.input_layernorm.weight,
            *(part for name in "qkv" for part in attention[f"{name}_proj"].parameters()),
            self.num_heads,
            self.num_kv_heads,
        )
        attended = attend(query, key, value, layout, compute, causal=True)
        if questions is not None:
            hidden, attended = hidden[questions], attended[questions]
        return compute.text_finish(
            hidden,
            attended,
            attention["o_proj"].weight,
            self.post_attention_layernorm.weight,
            *(self.mlp[name].weight for name in ("gate_proj", "up_proj", "down_proj")),
        )


class Scale(nn.Module):
    """The weight of an RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def normalise(patches: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 → -1 … 1."""
    return ((patches.float() - 127.5) / 127.5).to(dtype)


def _linear(columns: int, rows: int, *, bias: bool = True, residual: bool = False) -> nn.Linear:
    """Initialises weights with variance 1 / columns; additions to the residual stream start small."""
    linear = nn.Linear(columns, rows, bias=bias)
    nn.init.normal_(linear.weight, std=(0.3 if residual else 1.0) * columns**-0.5)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
