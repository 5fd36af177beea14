"""Qwen2-VL (arXiv 2409.12191) and Qwen2.5-VL (arXiv 2502.13923)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import JsonForm, TextForm
from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_VL_TEMPLATE, QWEN2_VL_TOOL_TEMPLATE
from glimpse.engine.checkpoint.families.reading.fields import require, text_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import VisionConfig, WindowConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import MAX_FRAMES
from glimpse.media.processing.image import image_processing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.video import Video, video_processing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

DEFAULT_FPS = 2.0
"""For videos without timestamps: Qwen's own tools sample two frames per second."""
MAX_SECONDS_PER_FRAME = 3600.0
"""Requests may set any frame rate; a larger interval would make positions indistinguishable."""
MAX_SECONDS = MAX_SECONDS_PER_FRAME * MAX_FRAMES
"""The latest time that is written."""

SLOT_TEXTS: Mapping[MediaKind, str] = {
    kind: f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in (MediaKind.IMAGE, MediaKind.VIDEO)
}
_QWEN2_DEFAULTS: Mapping[str, Any] = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4}
_QWEN2_5_DEFAULTS: Mapping[str, Any] = {"depth": 32, "num_heads": 16, "intermediate_size": 3420}
"""Defaults for fields of `vision_config` that checkpoints leave out if transformers 4 saved them, such as the published
AWQ ones and many fine-tuned ones (transformers, models/qwen2_vl/configuration_qwen2_vl.py and its sibling)."""


def _read_config(
    config: Mapping[str, Any], read_vision: Callable[[Mapping[str, Any], Mapping[str, Any]], VisionConfig]
) -> FamilyConfig:
    """Reads text fields from the top level (published checkpoints) or from `text_config` (transformers 5)."""
    text: Mapping[str, Any] = config.get("text_config") or config
    # transformers 5: `rope_parameters`, with theta in it. Published checkpoints: `rope_scaling` and `rope_theta`.
    rope: Mapping[str, Any] = text.get("rope_parameters") or text["rope_scaling"]
    require("hidden_act", text.get("hidden_act", "silu"), "silu")
    return FamilyConfig(
        text=text_config(text, config, rope, mrope_section=tuple(rope["mrope_section"])),
        encoder=read_vision(config["vision_config"], text),
        placeholder_ids={"image": config["image_token_id"], "video": config["video_token_id"]},
    )


def _qwen2_vision(stored: Mapping[str, Any], text: Mapping[str, Any]) -> VisionConfig:
    vision = {**_QWEN2_DEFAULTS, **stored}
    require("vision_config.hidden_act", vision.get("hidden_act", "quick_gelu"), "quick_gelu")
    return VisionConfig(
        embed_dim=vision["embed_dim"],
        hidden_size=vision.get("hidden_size", text["hidden_size"]),
        intermediate_size=int(vision["embed_dim"] * vision["mlp_ratio"]),
        **shared_fields(vision),
    )


def _qwen2_5_vision(stored: Mapping[str, Any], text: Mapping[str, Any]) -> VisionConfig:
    vision = {**_QWEN2_5_DEFAULTS, **stored}
    require("vision_config.hidden_act", vision.get("hidden_act", "silu"), "silu")
    shared = shared_fields(vision)
    token_side = shared["patch_size"] * shared["spatial_merge_size"]
    if (window_size := vision.get("window_size", 112)) < token_side:
        raise CheckpointError(
            f"config.json: 'vision_config.window_size': expected at least {token_side}, got {window_size}"
        )
    return VisionConfig(
        embed_dim=vision["hidden_size"],
        hidden_size=vision.get("out_hidden_size", text["hidden_size"]),
        intermediate_size=vision["intermediate_size"],
        gated=True,
        windows=WindowConfig(
            side=window_size // token_side,
            full_attention_blocks=frozenset(vision.get("fullatt_block_indexes", (7, 15, 23, 31))),
        ),
        tokens_per_second=vision.get("tokens_per_second", 4),
        **shared,
    )


def shared_fields(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `VisionConfig` that `vision_config` has in all families. Raises CheckpointError."""
    check_theta(vision)
    return {
        "depth": vision["depth"],
        "num_heads": vision["num_heads"],
        # Published checkpoints write `in_chans`, transformers writes `in_channels`.
        "in_channels": vision.get("in_channels", vision.get("in_chans", 3)),
        "patch_size": vision.get("patch_size", vision.get("spatial_patch_size", 14)),
        "spatial_merge_size": vision.get("spatial_merge_size", 2),
        "temporal_patch_size": vision.get("temporal_patch_size", 2),
    }


def check_output_width(vision: Mapping[str, Any], hidden_size: int) -> None:
    """Raises CheckpointError if an encoder's outputs have another width than the decoder."""
    if (width := vision["out_hidden_size"]) != hidden_size:
        raise CheckpointError(
            f"config.json: 'vision_config.out_hidden_size': expected the decoder's hidden_size {hidden_size},"
            f" got {width}"
        )


def check_theta(vision: Mapping[str, Any]) -> None:
    """Raises CheckpointError if patches rotate with other wavelengths than the supported ones."""
    rope: Mapping[str, Any] = vision.get("rope_parameters") or {}
    require("vision_config.rope_parameters.rope_theta", rope.get("rope_theta", 10_000.0), 10_000.0)


def read_media(path: Path, _config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images and videos; see `image_processing` and `video_processing`."""
    return MediaProcessing(images=image_processing(path), videos=video_processing(path))


def largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns an image of about `num_tokens` tokens. Larger videos are rare and may not fit."""
    vision = config.vision
    side = max(1, isqrt(num_tokens)) * vision.spatial_merge_size
    return LargestMedium(
        kind=MediaKind.IMAGE,
        grid=(1, side, side),
        num_bytes=vision.in_channels * (side * vision.patch_size) ** 2,
        num_positions=num_tokens * vision.spatial_merge_size**2,
        width=vision.embed_dim,
        intermediate_size=vision.intermediate_size,
    )


def embedding_merge_size(config: ModelConfig) -> int:
    """Returns how many patches lie along each side of a token's square."""
    return config.vision.spatial_merge_size


def layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image or video: one for each square of patches that is merged."""
    vision = context.model.vision
    grid_t, grid_h, grid_w = medium.grid
    num_tokens = grid_t * grid_h * grid_w // vision.spatial_merge_size**2
    return one_run(medium.kind, num_tokens, mrope_time_interval=_mrope_time_interval(medium, vision))


def _mrope_time_interval(medium: "Medium", vision: VisionConfig) -> float:
    if medium.kind is not MediaKind.VIDEO or vision.tokens_per_second is None:
        return 1.0
    seconds = medium.seconds_per_frame if isinstance(medium, Video) else None
    seconds = 1 / DEFAULT_FPS if seconds is None else min(seconds, MAX_SECONDS_PER_FRAME)
    return vision.tokens_per_second * vision.temporal_patch_size * seconds


JSON_BOXES = JsonForm(box="bbox_2d", point="point_2d", scale=1000)
_QWEN2_GROUNDING = (
    TextForm(
        pattern=re.compile(
            r"(?:<\|object_ref_start\|>(?P<label>[^<]*)<\|object_ref_end\|>\s*)?"
            r"(?P<box>(?:<\|box_start\|>[^<]*<\|box_end\|>)+)"
        ),
        scale=1000,
    ),
    JSON_BOXES,
)
"""Section 2.2 of the paper: thousandths of the image, between special tokens. In JSON they are the same numbers."""
_QWEN2_5_GROUNDING = (replace(JSON_BOXES, scale=None),)
"""Pixels after resizing, as the authors prepare boxes for training (qwen-vl-finetune/tools/process_bbox.ipynb)."""
QWEN2_VL = FamilySpec(
    read_config=partial(_read_config, read_vision=_qwen2_vision),
    module="qwen_vl",
    fallback_template=QWEN2_VL_TEMPLATE,
    tool_template=QWEN2_VL_TOOL_TEMPLATE,
    slot_texts=SLOT_TEXTS,
    slots_in_lines=False,
    read_media=read_media,
    layout=layout,
    largest_medium=largest_medium,
    embedding_merge_size=embedding_merge_size,
    grounding=_QWEN2_GROUNDING,
)
QWEN2_5_VL = replace(
    QWEN2_VL, read_config=partial(_read_config, read_vision=_qwen2_5_vision), grounding=_QWEN2_5_GROUNDING
)
