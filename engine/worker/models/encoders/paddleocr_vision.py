"""Vision encoder of PaddleOCR-VL: SigLIP's for images of any size, with Qwen2-VL's rotary positions and merger.

Numerics follow transformers' models/paddleocr_vl/modeling_paddleocr_vl.py.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import PaddleVisionConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import empty_parameter
from glimpse.engine.worker.layers.pixels import PixelStatistics
from glimpse.engine.worker.layers.quantized import named_tensors, prefixed
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import (
    PatchMerger,
    VisionBlock,
    VisionTower,
    placed_positions,
)

_MERGER_EPS = 1e-5
_MERGER = {"0": "visual.vision_model.post_layernorm", "1.ln_q": "mlp_AR.pre_norm"} | {
    f"1.mlp.{index}": f"mlp_AR.linear_{number}" for index, number in ((0, 1), (2, 2))
}
"""Names of the merger's modules → those in checkpoints."""


class PaddleVisionTower(VisionTower):
    """Qwen2-VL's encoder with learned positions and a norm after its blocks."""

    def __init__(self, config: PaddleVisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(config, statistics)
        self.position_table = empty_parameter(config.position_side**2, config.embed_dim)
        merger = PatchMerger(config)
        merger.ln_q = nn.LayerNorm(config.embed_dim, eps=_MERGER_EPS)
        self.merger = nn.Sequential(nn.LayerNorm(config.embed_dim, eps=config.norm_eps), merger)

    def _embed(self, medium: Encode) -> Tensor:
        """See `VisionTower._embed`."""
        patches, merge = super()._embed(medium), self.config.spatial_merge_size
        return patches + placed_positions(self.position_table, medium.grid, merge, mode="bilinear").to(patches.dtype)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        embeddings, side = "visual.vision_model.embeddings", self.config.patch_size
        kernel = self.patch_embed.weight.data.view(-1, self.config.in_channels, side, side)
        yield f"{embeddings}.patch_embedding.weight", kernel
        assert self.patch_embed.bias is not None
        yield f"{embeddings}.patch_embedding.bias", self.patch_embed.bias.data
        yield f"{embeddings}.position_embedding.weight", self.position_table.data
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            layer = f"visual.vision_model.encoder.layers.{index}"
            for number, norm in enumerate((block.norm1, block.norm2), 1):
                yield from named_tensors(norm, f"{layer}.layer_norm{number}")
            yield from block.attn.qkv.named_weights(*(f"{layer}.self_attn.{part}_proj" for part in "qkv"))
            yield from block.attn.proj.named_weights(f"{layer}.self_attn.out_proj")
            yield from prefixed(f"{layer}.mlp.", block.mlp.named_weights())
        for name, tensor in named_tensors(self.merger):
            module, _, kind = name.rpartition(".")
            yield f"{_MERGER[module]}.{kind}", tensor

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`: a head that pools, and positions that only training reads."""
        return name.startswith("visual.vision_model.head.") or "packing_position_embedding" in name
