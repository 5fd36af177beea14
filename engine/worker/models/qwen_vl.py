"""Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631): a Qwen decoder with a
vision encoder, and M-RoPE positions.

Numerics follow transformers' `Qwen2VLForConditionalGeneration` (models/qwen2_vl/modeling_qwen2_vl.py),
`Qwen2_5_VLForConditionalGeneration` (models/qwen2_5_vl/modeling_qwen2_5_vl.py) and `Qwen3VLForConditionalGeneration`
(models/qwen3_vl/modeling_qwen3_vl.py). Qwen3-VL's decoder has interleaved M-RoPE and DeepStack, and each frame of a
video is a grid of positions of its own, after the text of its time stamp.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from glimpse.engine.checkpoint.model_config.encoders import PaddleVisionConfig, Qwen3VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.layers.pixels import read_statistics
from glimpse.engine.worker.models.decoder import text_positions
from glimpse.engine.worker.models.encoders.paddleocr_vision import PaddleVisionTower
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import VisionTower
from glimpse.engine.worker.models.encoders.qwen3_vl_vision import Qwen3VisionTower
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.batch import SequenceLayout


class QwenVL(Model):
    """A decoder whose positions have three axes, with the tensor names of these checkpoints."""

    renamed_prefixes: ClassVar = {"model.language_model.": "model.", "model.visual.": "visual."}

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Returns the positions of a prompt's tokens; see `layout_prompt`."""
        assert isinstance(self.encoder, VisionTower)
        return layout_prompt(num_tokens, spans, self.encoder.config.spatial_merge_size)


class PaddleOcrVL(QwenVL):
    """A `QwenVL` with the tensor names of PaddleOCR-VL's checkpoints."""

    renamed_prefixes: ClassVar = {**QwenVL.renamed_prefixes, "model.projector.": "mlp_AR."}


class ColQwen2(QwenVL):
    """A `QwenVL` with the tensor names of its checkpoints: those of transformers 5, or older ones that have the layers
    within a model of their own.

    Positions are M-RoPE's, as in training. (transformers 5 counts images as text, unless it is given positions.)
    """

    renamed_prefixes: ClassVar = {
        **{f"vlm.{name}": published for name, published in QwenVL.renamed_prefixes.items()},
        "vlm.language_model.": "model.",
        "vlm.model.": "model.",
        "vlm.": "",
    }


def make_model(path: Path, config: ModelConfig) -> QwenVL:
    """See `build_model.make_model`."""
    vision, statistics = config.vision, read_statistics(path)
    if isinstance(vision, PaddleVisionConfig):
        return PaddleOcrVL(config.text, PaddleVisionTower(vision, statistics))
    if config.token_embedding_size is not None:
        size = config.token_embedding_size
        return ColQwen2(config.text, VisionTower(vision, statistics), token_embedding_size=size)
    is_third = isinstance(vision, Qwen3VisionConfig)
    return QwenVL(config.text, Qwen3VisionTower(vision, statistics) if is_third else VisionTower(vision, statistics))


def layout_prompt(num_tokens: int, spans: Sequence[MediaSpan], spatial_merge_size: int) -> SequenceLayout:
    """Returns the positions of a prompt's tokens on the axes time, height and width (M-RoPE).

    Text advances on all three axes at once. The tokens of an image or video, or of each frame of a video whose frames
    are runs of their own (Qwen3-VL), lie on a grid that begins after everything before it, and the following text
    begins after the grid's largest position, as in the paper and in the
    implementation with which the weights were published. (transformers 5 continues after a video's height or width
    only, so that text after a video of many small frames shares positions with it, which trained weights never saw.)

    Args:
        spans: media spans of the prompt, ordered by `start`.
        spatial_merge_size: patches per side of the square that becomes one token.
    """
    pieces: list[np.ndarray] = []  # [3, tokens] each
    index = position = 0
    for span in spans:
        grid_t, grid_h, grid_w = span.grid
        shape = (grid_t // len(span.runs), grid_h // spatial_merge_size, grid_w // spatial_merge_size)
        places = np.indices(shape).reshape(3, -1)
        # In float32 like the reference implementation, where a product can be slightly below an integer.
        places[0] = np.float32(span.mrope_time_interval) * places[0].astype(np.float32)
        for offset, length in span.runs:
            num_before = span.start + offset - index
            pieces += (text_positions(position, num_before), position + num_before + places)
            position += num_before + int(places.max()) + 1
            index += num_before + length
    pieces.append(text_positions(position, num_tokens - index))
    position += num_tokens - index
    return SequenceLayout(
        prompt_positions=np.concatenate(pieces, axis=1), delta=position - num_tokens, spans=tuple(spans)
    )
