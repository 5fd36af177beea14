"""Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923): Qwen2's decoder, the vision tower beside it, and the
positions of its prompts.

Numerics follow transformers' `Qwen2VLForConditionalGeneration` (models/qwen2_vl/modeling_qwen2_vl.py) and
`Qwen2_5_VLForConditionalGeneration` (models/qwen2_5_vl/modeling_qwen2_5_vl.py).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from glimpse.engine.layers.ops import Ops, TorchOps
from glimpse.engine.model_config import TextConfig, VisionConfig
from glimpse.engine.models.qwen2 import Decoder, text_positions
from glimpse.engine.models.qwen2_vl_vision import PixelStatistics, VisionTower
from glimpse.engine.plan import MediaSpan
from glimpse.engine.tensors.batch import Batch, SequenceLayout
from glimpse.engine.tensors.kv_cache import KVCache


class Qwen2VL(nn.Module):
    """The whole model. Its parameters are empty until they are loaded through `named_weights`."""

    def __init__(self, text: TextConfig, vision: VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        self.ops: Ops = TorchOps()
        """Carries out the layers' operations; replaced together with the form of the weights."""
        self.decoder_ops: Ops | None = None
        """The decoder's, in place of `ops`, where this process holds only a part of its weights."""
        self.visual = VisionTower(vision, statistics)
        self.decoder = Decoder(text)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        """As `Decoder` says; the encoder outputs are what `encode` gives."""
        return self.decoder(batch, cache, encoder_outputs, self.decoder_ops or self.ops)

    def encode(self, media: Sequence[tuple[memoryview, tuple[int, int, int]]]) -> list[Tensor]:
        """The rows that stand for each medium's placeholder tokens; see `VisionTower`."""
        return self.visual(media, self.ops)

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Where a prompt's tokens stand; see `layout_prompt`."""
        return layout_prompt(num_tokens, spans, self.visual.config.spatial_merge_size)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint; see `Decoder.named_weights`."""
        yield from self.decoder.named_weights()
        yield from ((f"visual.{name}", tensor) for name, tensor in self.visual.named_weights())


def layout_prompt(num_tokens: int, spans: Sequence[MediaSpan], spatial_merge_size: int) -> SequenceLayout:
    """Positions of a prompt on the axes time, height and width (M-RoPE).

    Text advances on all three axes at once. A medium lies on a grid that begins after all that is before it, and what
    follows begins after the grid's largest position. So says the paper, and so did the implementation with which the
    weights were published. (transformers 5 goes on after a clip's height or width alone, so that text after a clip of
    many small frames shares positions with it: trained weights never saw that.)

    Args:
        num_tokens: of the prompt.
        spans: its media, in the order of `start`.
        spatial_merge_size: patches of a side that become one token.
    """
    pieces: list[np.ndarray] = []  # [3, tokens] each
    index = position = 0
    for span in spans:
        pieces.append(text_positions(position, span.start - index))
        position += span.start - index
        grid_t, grid_h, grid_w = span.grid_thw
        shape = (grid_t, grid_h // spatial_merge_size, grid_w // spatial_merge_size)
        places = np.indices(shape).reshape(3, -1)
        # In float32, as the reference, where a product may come out a little below a whole number, or not.
        places[0] = np.float32(span.mrope_time_interval) * places[0].astype(np.float32)
        pieces.append(position + places)
        position += int(places.max()) + 1
        index = span.end
    pieces.append(text_positions(position, num_tokens - index))
    position += num_tokens - index
    return SequenceLayout(
        prompt_positions=np.concatenate(pieces, axis=1), delta=position - num_tokens, spans=tuple(spans)
    )


def checkpoint_name(name: str) -> str:
    """The published name of a checkpoint's tensor that may bear the name it has inside transformers 5."""
    for prefix, published in (("model.language_model.", "model."), ("model.visual.", "visual.")):
        if name.startswith(prefix):
            return published + name.removeprefix(prefix)
    return name
