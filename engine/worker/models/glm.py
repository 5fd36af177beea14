"""GLM-4.1V, GLM-4.6V-Flash and GLM-OCR: a decoder with norms after attention and MLPs, and Qwen2.5-VL's encoder with
learned positions or norms of heads, and another merger.

Numerics follow transformers' models/glm4v/modeling_glm4v.py and models/glm_ocr/modeling_glm_ocr.py.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import GlmVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.mlp import gated
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import named_tensors, prefixed
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import VisionTower, placed_positions
from glimpse.engine.worker.models.encoders.varlen_segments import Grid
from glimpse.engine.worker.models.qwen_vl import QwenVL

_NORMS = {
    "post_self_attn_layernorm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}
"""Names of a layer's norms → those of other checkpoints with norms after attention and MLPs."""
_NORM = re.compile(rf"\b({'|'.join(_NORMS)})\b")
_GATE_UP = ".mlp.gate_up_proj."
_OF_MTP = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
}
"""Names in the layer of multi-token prediction that the decoder's layers lack → Qwen3.5's."""
_SHARED = ("embed_tokens", "shared_head.head", "shared_head_head")
"""Copies there of the decoder's own tensors."""


class Glm(QwenVL):
    """A decoder and an encoder, with the names of tensors in GLM's checkpoints."""

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        if name.startswith(self._mtp_prefix):
            stem, _, kind = name.removeprefix(self._mtp_prefix).rpartition(".")
            name = f"mtp.{_OF_MTP.get(stem, f'layers.0.{stem}')}.{kind}"
        if _GATE_UP in name:
            parts = (name.replace(_GATE_UP, f".mlp.{part}_proj.") for part in ("gate", "up"))
            return zip(parts, tensor.chunk(2), strict=True)
        return super().split_weight(_NORM.sub(lambda found: _NORMS[found[0]], name), tensor, text)

    def is_unused(self, name: str) -> bool:
        is_of_mtp = name.startswith((self._mtp_prefix, "mtp."))
        is_shared = name.rpartition(".")[0].endswith(_SHARED)
        return (is_of_mtp and (self.mtp is None or is_shared)) or super().is_unused(name)

    @property
    def _mtp_prefix(self) -> str:
        """Prefix of the layer of multi-token prediction, which is one more than the decoder has."""
        return f"model.layers.{self.decoder.config.num_layers}."


class GlmTower(VisionTower):
    """Qwen2.5-VL's encoder without windows, with another merger."""

    def __init__(self, config: GlmVisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(config, statistics)
        self.merger = GlmMerger(config)
        self.positions = None if config.position_side is None else LearnedPositions(config, config.position_side)

    def _embed(self, medium: Encode) -> Tensor:
        """See `VisionTower._embed`."""
        patches = super()._embed(medium)
        return patches if self.positions is None else self.positions(patches, medium.grid)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from (named for named in super().named_weights() if ".merger." not in named[0])
        if self.positions is not None:
            yield "visual.post_conv_layernorm.weight", self.positions.norm.weight.data
            yield "visual.embeddings.position_embedding.weight", self.positions.table.data
        yield from prefixed("visual.", self.merger.named_weights())


class LearnedPositions(nn.Module):
    """Normalizes patches, and adds learned positions, which are interpolated from a square grid to that of a medium."""

    def __init__(self, config: GlmVisionConfig, side: int) -> None:
        super().__init__()
        self.merge = config.spatial_merge_size
        self.norm = RMSNorm(config.embed_dim, eps=config.norm_eps)
        self.table = empty_parameter(side**2, config.embed_dim)

    def forward(self, patches: Tensor, grid: Grid) -> Tensor:
        """[patches, embed_dim] → the same, in the order of `cut_patches`."""
        # As the reference's grid_sample, whose corners are edges of pixels too.
        return self.norm(patches) + placed_positions(self.table, grid, self.merge, mode="bicubic").to(patches.dtype)


class GlmMerger(nn.Module):
    """Merges each square of patches into one row of the decoder's width."""

    def __init__(self, config: GlmVisionConfig) -> None:
        super().__init__()
        self.side, width = config.spatial_merge_size, config.hidden_size
        self.norm = RMSNorm(config.embed_dim, eps=config.norm_eps)
        # Equivalent to the reference implementation's Conv2d, whose stride equals its kernel size.
        self.downsample = Linear(self.side**2 * config.embed_dim, width, bias=True)
        self.projection = Linear(width, width, bias=False)
        self.projection_norm = nn.LayerNorm(width)
        inner = config.merger_size
        self.gate_up = Linear(
            width, (inner, inner), bias=False
        )  # not a `GatedMLP`, which operations compute after a norm
        self.down = Linear(inner, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, embed_dim] → [patches / num_merged, hidden_size]"""
        squares = self.norm(hidden).unflatten(0, (-1, self.side**2)).flatten(1)
        rows = functional.gelu(self.projection_norm(self.projection(self.downsample(squares))))
        return self.down(gated(self.gate_up(rows), "silu"))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the encoder's prefix."""
        yield "post_layernorm.weight", self.norm.weight.data
        kernel = self.downsample.weight.data.unflatten(1, (self.side, self.side, -1))
        yield "downsample.weight", kernel.permute(0, 3, 1, 2)
        assert self.downsample.bias is not None
        yield "downsample.bias", self.downsample.bias.data
        yield from self.projection.named_weights("merger.proj")
        yield from named_tensors(self.projection_norm, "merger.post_projection_norm")
        yield from self.gate_up.named_weights("merger.gate_proj", "merger.up_proj")
        yield from self.down.named_weights("merger.down_proj")


def make_model(path: Path, config: ModelConfig) -> Glm:
    """See `build_model.make_model`."""
    return Glm(config.text, GlmTower(config.encoder_as(GlmVisionConfig), read_statistics(path)))
