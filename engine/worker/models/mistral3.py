"""Mistral 3 and LightOnOCR: a decoder, and Pixtral's encoder (arXiv 2410.07073), squares of whose patches are merged.

Numerics follow transformers' `PixtralVisionModel` (models/pixtral/modeling_pixtral.py) and
`Mistral3ForConditionalGeneration` (models/mistral3/modeling_mistral3.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import PixtralVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.layers.rotary import Rotation, planar_rotation
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import VisionBlock, VisionTower, patch_positions
from glimpse.engine.worker.models.encoders.varlen_segments import Grid
from glimpse.engine.worker.models.llava.llava import Llava
from glimpse.engine.worker.models.model import Model

_TOWER, _PROJECTOR = "vision_tower.", "multi_modal_projector."


class Mistral3(Model):
    """A decoder and an encoder, with the names of tensors in Mistral's checkpoints."""

    renamed_prefixes: ClassVar = {
        **{name: prefix for name, prefix in Llava.renamed_prefixes.items() if "vision_tower" not in name},
        "model.vision_tower.": _TOWER,
        "model.vision_encoder.": _TOWER,  # LightOnOCR
        "model.vision_projection.": _PROJECTOR,
    }
    decoder_prefix: ClassVar = Llava.decoder_prefix


class PixtralTower(VisionTower):
    """Qwen2.5-VL's encoder without windows and biases, with a norm before its blocks and another merger."""

    config: PixtralVisionConfig

    def __init__(self, config: PixtralVisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(config, statistics)
        self.pre_norm = RMSNorm(config.embed_dim, eps=config.norm_eps)
        self.merger = PixtralMerger(config)

    def _embed(self, medium: Encode) -> Tensor:
        """See `VisionTower._embed`."""
        return self.pre_norm(super()._embed(medium))

    def _rotation(self, grids: Sequence[Grid], device: torch.device) -> Rotation:
        config = self.config
        positions = torch.cat([patch_positions(grid, config.spatial_merge_size, device) for grid in grids])
        head_dim = config.embed_dim // config.num_heads
        return planar_rotation(positions, head_dim=head_dim, theta=config.rope_theta, alternating=True)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        config = self.config
        kernel = (config.embed_dim, config.in_channels, config.patch_size, config.patch_size)
        yield f"{_TOWER}patch_conv.weight", self.patch_embed.weight.data.view(kernel)
        yield f"{_TOWER}ln_pre.weight", self.pre_norm.weight.data
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            layer = f"{_TOWER}transformer.layers.{index}."
            yield f"{layer}attention_norm.weight", block.norm1.weight.data
            projections = (f"{layer}attention.{name}_proj" for name in "qkv")
            yield from block.attn.qkv.named_weights(*projections)
            yield from block.attn.proj.named_weights(f"{layer}attention.o_proj")
            yield f"{layer}ffn_norm.weight", block.norm2.weight.data
            yield from prefixed(f"{layer}feed_forward.", block.mlp.named_weights())
        if (squares := self.merger.squares) is not None:
            yield f"{_PROJECTOR}norm.weight", squares.norm.weight.data
            yield from squares.merging.named_weights(f"{_PROJECTOR}patch_merger.merging_layer")
        yield from self.merger.linear_1.named_weights(f"{_PROJECTOR}linear_1")
        yield from self.merger.linear_2.named_weights(f"{_PROJECTOR}linear_2")


class PixtralMerger(nn.Module):
    """Merges each square of patches into one row, unless a patch is a token, and projects to the decoder's width."""

    def __init__(self, config: PixtralVisionConfig) -> None:
        super().__init__()
        self.squares = None if (eps := config.merged_norm_eps) is None else Squares(config, eps)
        self.linear_1 = Linear(config.embed_dim, config.hidden_size, bias=config.projector_bias)
        self.linear_2 = Linear(config.hidden_size, config.hidden_size, bias=config.projector_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, embed_dim] → [patches / num_merged, hidden_size]"""
        rows = hidden if self.squares is None else self.squares(hidden)
        return self.linear_2(functional.gelu(self.linear_1(rows)))


class Squares(nn.Module):
    """Merges each square of patches into one row of the encoder's width."""

    def __init__(self, config: PixtralVisionConfig, eps: float) -> None:
        super().__init__()
        self.num_merged = config.spatial_merge_size**2
        self.norm = RMSNorm(config.embed_dim, eps=eps)
        self.merging = Linear(self.num_merged * config.embed_dim, config.embed_dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[patches, embed_dim] → [patches / num_merged, embed_dim]"""
        # The values of a square are ordered by feature, then by patch, as `unfold` returns them.
        return self.merging(self.norm(hidden).unflatten(0, (-1, self.num_merged)).transpose(1, 2).flatten(1))


def make_model(path: Path, config: ModelConfig) -> Mistral3:
    """See `build_model.make_model`."""
    return Mistral3(config.text, PixtralTower(config.encoder_as(PixtralVisionConfig), read_statistics(path)))
