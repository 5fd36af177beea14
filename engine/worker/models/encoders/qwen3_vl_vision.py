"""Vision encoder of Qwen3-VL: from uint8 pixels to the rows of placeholder tokens.

A row is the embedding of a token followed by what the decoder's first layers add to its hidden state (DeepStack,
arXiv 2406.04334). Numerics follow `Qwen3VLVisionModel` of transformers (models/qwen3_vl/modeling_qwen3_vl.py). Patches
are in the order of `glimpse.engine.worker.models.encoders.qwen2_vl_vision`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import Qwen3VisionConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics
from glimpse.engine.worker.layers.quantized import named_tensors
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import PatchMerger, VisionTower, placed_positions
from glimpse.engine.worker.models.encoders.varlen_segments import Grid, frame_segments

_NAMES = {".mlp.fc": ".mlp.linear_fc", ".ln_q.": ".norm.", ".mlp.0.": ".linear_fc1.", ".mlp.2.": ".linear_fc2."}
"""Parts of Qwen2-VL's names → Qwen3-VL's."""


class Qwen3VisionTower(VisionTower):
    """Qwen2-VL's encoder with learned positions, and further mergers."""

    def __init__(self, config: Qwen3VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(config, statistics)
        self.deepstack_blocks = config.deepstack_blocks
        self.position_table = empty_parameter(config.position_side**2, config.embed_dim)
        self.deepstack_mergers = nn.ModuleList(PatchMerger(config, norms_squares=True) for _ in config.deepstack_blocks)

    def _embed(self, medium: Encode) -> Tensor:
        """Returns the embedded patches of a medium with their positions, [patches, width]."""
        table, merge = self.position_table, self.config.spatial_merge_size
        positions = placed_positions(table, medium.grid, merge, mode="bilinear", align_corners=True)
        return super()._embed(medium) + positions.to(table.dtype)

    def _rows(self, hidden: Tensor, grids: Sequence[Grid], ops: Ops) -> Tensor:
        """See `VisionTower._rows`."""
        frames = frame_segments(grids, self._rotation(grids, hidden.device))
        added: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            hidden = block(hidden, ops, frames)
            if index in self.deepstack_blocks:
                added.append(self.deepstack_mergers[len(added)](hidden))
        return torch.cat([self.merger(hidden), *added], dim=1)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield "visual.pos_embed.weight", self.position_table.data
        mergers = named_tensors(self.deepstack_mergers, "visual.deepstack_merger_list")
        for name, tensor in chain(super().named_weights(), mergers):
            yield _published(name), tensor


def _published(name: str) -> str:
    for ours, published in _NAMES.items():
        name = name.replace(ours, published)
    return name
