"""Qwen3-VL (arXiv 2511.21631): dense checkpoints, and those with experts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import (
    DEFAULT_FPS,
    JSON_BOXES,
    MAX_SECONDS,
    QWEN2_VL,
    check_output_width,
    shared_fields,
)
from glimpse.engine.checkpoint.families.reading.chatml import QWEN3_VL_TEMPLATE
from glimpse.engine.checkpoint.families.reading.fields import (
    check_qwen3_decoder,
    experts_of,
    require_fields,
    rope_of,
    text_config,
)
from glimpse.engine.checkpoint.families.spec import FamilyConfig, RerankQuestion
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, marked_runs, one_run
from glimpse.engine.checkpoint.model_config.encoders import Qwen3VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import image_processing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import Video, volume_video_processing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium


_VISION_DEFAULTS: Mapping[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": (8, 16, 24),
}
"""Defaults for fields that checkpoints may leave out (transformers, models/qwen3_vl/configuration_qwen3_vl.py)."""


_IMAGES = SmartResize(patch_size=16, min_pixels=64 * 32 * 32, max_pixels=1280 * 32 * 32)
"""Sizes of images by default: the published minimum, and as many tokens as for Qwen2-VL at most."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text: Mapping[str, Any] = config["text_config"]
    rope = rope_of(text)
    check_qwen3_decoder(text, rope)
    encoder = read_vision(config["vision_config"], text["hidden_size"])
    return FamilyConfig(
        text=text_config(
            text,
            config,
            rope,
            mrope_section=tuple(rope["mrope_section"]),
            mrope_interleaved=True,
            qkv_bias=False,
            head_norms=True,
            num_deepstack_layers=len(encoder.deepstack_blocks),
            experts=experts_of(text, renormalized=True),  # whatever `norm_topk_prob` says, as in transformers
        ),
        encoder=encoder,
        placeholder_ids={"image": config["image_token_id"], "video": config["video_token_id"]},
    )


def read_vision(vision: Mapping[str, Any], hidden_size: int) -> Qwen3VisionConfig:
    """Reads the encoder, whose outputs must have the decoder's `hidden_size`."""
    vision = {**_VISION_DEFAULTS, **vision}
    check_output_width(vision, hidden_size)
    require_fields(vision, "vision_config.", hidden_act="gelu_pytorch_tanh")
    blocks = tuple(vision["deepstack_visual_indexes"])
    if list(blocks) != sorted(set(blocks)) or not all(0 <= block < vision["depth"] for block in blocks):
        raise CheckpointError(
            f"config.json: 'vision_config.deepstack_visual_indexes': expected ascending indices of the "
            f"{vision['depth']} blocks, got {list(blocks)}"
        )
    return Qwen3VisionConfig(
        embed_dim=vision["hidden_size"],
        hidden_size=vision["out_hidden_size"],
        intermediate_size=vision["intermediate_size"],
        activation="gelu_tanh",
        patch_bias=True,
        position_side=_position_side(vision["num_position_embeddings"]),
        deepstack_blocks=blocks,
        **shared_fields(vision),
    )


def _position_side(num_positions: int) -> int:
    side = round(num_positions**0.5)
    if side**2 != num_positions:
        raise CheckpointError(
            f"config.json: 'vision_config.num_position_embeddings': expected a square number, got {num_positions}"
        )
    return side


def layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image or video: one for each square of patches that is merged.

    A video is written frame by frame: the text of its time, then an image of its own. `<|vision_start|>` and
    `<|vision_end|>` around the video's placeholder go, as in the release of the weights (transformers 4.57 and vLLM;
    transformers 5 leaves them where they are).
    """
    vision = context.model.vision
    grid_t, grid_h, grid_w = medium.grid
    num_tokens = grid_h * grid_w // vision.spatial_merge_size**2
    if not isinstance(medium, Video):
        return one_run(medium.kind, grid_t * num_tokens)
    start, end = (tuple(context.encode(mark)) for mark in ("<|vision_start|>", "<|vision_end|>"))
    first, *others = (f"<{seconds:.1f} seconds>" for seconds in patch_seconds(medium, vision.temporal_patch_size))
    pieces = marked_runs(start, end, map(context.encode, others), num_tokens)
    return TokenLayout(kind=medium.kind, leading=first, pieces=pieces, prefix=start, suffix=end)


def read_media(path: Path, _config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images and videos; see `image_processing` and `volume_video_processing`."""
    return MediaProcessing(images=image_processing(path, _IMAGES), videos=volume_video_processing(path))


def patch_seconds(video: Video, depth: int) -> list[float]:
    """Returns the time of each temporal patch: the mean of its first and last frame's.

    Args:
        depth: frames per patch; the last frame is repeated to fill it.
    """
    seconds = video.times(DEFAULT_FPS, MAX_SECONDS)
    firsts = range(0, len(seconds), depth)
    return [(seconds[first] + seconds[min(first + depth, len(seconds)) - 1]) / 2 for first in firsts]


QWEN3_VL = replace(
    QWEN2_VL,
    read_config=_read_config,
    fallback_template=QWEN3_VL_TEMPLATE,
    tool_template=None,
    read_media=read_media,
    layout=layout,
    grounding=(JSON_BOXES,),  # thousandths again (cookbooks/2d_grounding.ipynb and spatial_understanding.ipynb)
    embedding_kinds=frozenset({MediaKind.IMAGE}),  # those of videos have no times
    rerank_question=RerankQuestion(  # of Qwen3-VL-Reranker's model card
        text="<Instruct>: {instruction}<Query>:{query}\n<Document>:",
        instruction="Given a search query, retrieve relevant candidates that answer the query.",
    ),
)
