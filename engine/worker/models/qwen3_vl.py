"""Qwen3-VL: Qwen3's decoder with a vision encoder, interleaved M-RoPE and DeepStack.

Numerics follow transformers' `Qwen3VLForConditionalGeneration` (models/qwen3_vl/modeling_qwen3_vl.py). Each frame of a
video is a grid of positions of its own, after the text of its time stamp.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import Qwen3VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.models.encoders.qwen3_vl_vision import Qwen3VisionTower
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.models.qwen2_vl import layout_prompt
from glimpse.engine.worker.tensors.batch import SequenceLayout


class Qwen3VL(Model):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {"model.language_model.": "model.", "model.visual.": "visual."}

    def __init__(self, text: TextConfig, vision: Qwen3VisionConfig, statistics: PixelStatistics) -> None:
        super().__init__(text)
        self.visual = Qwen3VisionTower(vision, statistics)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the encoder output of each image or video, one row per placeholder token; see `Qwen3VisionTower`."""
        return self.visual([(medium.data, medium.grid) for medium in media], self.ops)

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Returns the positions of a prompt's tokens; see `layout_prompt`."""
        return layout_prompt(num_tokens, spans, self.visual.config.spatial_merge_size)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from super().named_weights()
        yield from ((f"visual.{name}", tensor) for name, tensor in self.visual.named_weights())


def make_model(path: Path, config: ModelConfig) -> Qwen3VL:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    assert isinstance(config.encoder, Qwen3VisionConfig)
    return Qwen3VL(config.text, config.encoder, read_statistics(path))
