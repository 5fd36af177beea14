"""GLM-4.1V-Thinking (arXiv 2507.01006) and GLM-4.6V-Flash: a decoder of GLM-4's, images and videos.

Both have one architecture. Their processors differ: in the frames that they sample and in how they write times.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import TextForm
from glimpse.engine.checkpoint.families.qwen.qwen2_vl import (
    DEFAULT_FPS,
    MAX_SECONDS,
    check_output_width,
    embedding_merge_size,
    largest_medium,
    shared_fields,
)
from glimpse.engine.checkpoint.families.reading.fields import mrope_section_of, require, rope_of, text_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, marked_runs, one_run
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import GlmVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import ClockSampling, DurationSampling
from glimpse.media.processing.image import ImageProcessing, image_processing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import positive
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import Video, sampled_video_processing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_TEXT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151_552,
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
}
_VISION_DEFAULTS: Mapping[str, Any] = {
    "depth": 24,
    "hidden_size": 1536,
    "num_heads": 12,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
    "image_size": 336,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
}
"""Values of fields that documents leave out, as in transformers' models/glm4v/configuration_glm4v.py."""
_VOLUMES = SmartResize(min_pixels=112 * 112, max_pixels=15_000 * 28 * 28)
"""Bounds of the reference, on the pixels of all frames of an image: it is repeated to fill a patch."""
IMAGE_TEXT = "<|begin_of_image|><|image|><|end_of_image|>"
_VIDEO = "<|video|>"


def read_decoder(config: Mapping[str, Any], defaults: Mapping[str, Any], *, qkv_bias: bool) -> TextConfig:
    """Reads a decoder of GLM's, whose documents may leave out fields that have these defaults."""
    text = {**defaults, **config["text_config"]}
    rope = {"rope_theta": text.get("rope_theta", 10_000.0), "mrope_section": (8, 12, 12), **rope_of(text)}
    require("text_config.hidden_act", text.get("hidden_act", "silu"), "silu")
    require("text_config.rope_parameters.rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 1.0))
    return text_config(
        text,
        config,
        rope,
        mrope_section=mrope_section_of(rope, int(head_dim * factor) // 2),
        partial_rotary_factor=factor,
        alternating_rotary=True,
        qkv_bias=qkv_bias,
        output_norms=True,
        num_mtp_layers=text.get("num_nextn_predict_layers") or 0,
        mtp_repeats_normed=False,
    )


def read_vision(vision: Mapping[str, Any], text: TextConfig, **sizes: Any) -> GlmVisionConfig:
    """Reads an encoder of GLM's. `sizes` are fields of `GlmVisionConfig` that families read in ways of their own."""
    require("vision_config.hidden_act", vision.get("hidden_act", "silu"), "silu")
    check_output_width(vision, text.hidden_size)
    return GlmVisionConfig(
        embed_dim=vision["hidden_size"],
        hidden_size=vision["out_hidden_size"],
        gated=True,
        patch_bias=True,
        block_bias=vision["attention_bias"],
        norm_eps=vision["rms_norm_eps"],
        **sizes,
        **shared_fields(vision),
    )


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    text = read_decoder(config, _TEXT_DEFAULTS, qkv_bias=True)
    vision = {**_VISION_DEFAULTS, **config["vision_config"]}
    require("vision_config.attention_bias", vision["attention_bias"], False)
    encoder = read_vision(
        vision,
        text,
        intermediate_size=vision["out_hidden_size"],
        merger_size=vision["intermediate_size"],
        position_side=vision["image_size"] // vision.get("patch_size", 14),
    )
    return FamilyConfig(
        text=text,
        encoder=encoder,
        placeholder_ids={"image": config["image_token_id"], "video": config["image_token_id"]},
        placeholder_texts={"video": _VIDEO},
    )


def read_images(path: Path, config: ModelConfig) -> ImageProcessing:
    """Reads the processing of images, whose bounds are on the pixels of all frames of a patch."""
    found = image_processing(path, _VOLUMES)
    assert isinstance(found.sizing, SmartResize)
    depth = config.vision.temporal_patch_size
    sizing = SmartResize(
        patch_size=found.sizing.patch_size,
        merge_size=found.sizing.merge_size,
        temporal_patch_size=depth,
        min_pixels=found.sizing.min_pixels // depth,
        max_pixels=found.sizing.max_pixels // depth,
        enlarges_slim=True,
    )
    return ImageProcessing(sizing=sizing)


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    is_later = config.architecture.startswith("Glm46V")
    videos = sampled_video_processing(path, _duration_sampling if is_later else _clock_sampling)
    return MediaProcessing(images=read_images(path, config), videos=videos)


def _clock_sampling(own: Mapping[str, Any]) -> ClockSampling:
    return ClockSampling(
        fps=float(own.get("fps") or 2), max_seconds=positive("max_duration", own.get("max_duration", 300))
    )


def _duration_sampling(_own: Mapping[str, Any]) -> DurationSampling:
    return DurationSampling()  # whatever the file says, like the reference


def _layout(medium: "Medium", context: LayoutContext, *, write_time: Callable[[float], str]) -> TokenLayout:
    """Returns the tokens of an image or video: one for each square of patches that is merged.

    A video is written frame by frame: an image of its own, then the text of its time, of which `write_time` takes the
    seconds.
    """
    vision = context.model.vision
    grid_t, grid_h, grid_w = medium.grid
    num_tokens = grid_h * grid_w // vision.spatial_merge_size**2
    if not isinstance(medium, Video):
        return one_run(medium.kind, grid_t * num_tokens)
    start, end = map(context.encode, ("<|begin_of_image|>", "<|end_of_image|>"))
    # The time of a temporal patch is that of its first frame.
    *others, last = map(write_time, medium.times(DEFAULT_FPS, MAX_SECONDS)[:: vision.temporal_patch_size])
    pieces = marked_runs(start, end, map(context.encode, others), num_tokens)
    return TokenLayout(kind=medium.kind, pieces=pieces, trailing=last)


_GROUNDING = (TextForm(pattern=re.compile(r"<\|begin_of_box\|>\s*(?P<box>[\[(<{][^|]*)<\|end_of_box\|>"), scale=1000),)
"""Thousandths of the image, in any brackets (zai-org/GLM-V, README.md, Grounding). Other answers stand there too."""
GLM4V = FamilySpec(
    read_config=_read_config,
    module="glm",
    slot_texts={MediaKind.IMAGE: IMAGE_TEXT, MediaKind.VIDEO: f"<|begin_of_video|>{_VIDEO}<|end_of_video|>"},
    slots_in_lines=False,
    read_media=_read_media,
    layout=partial(_layout, write_time=lambda seconds: f"{int(seconds)}"),
    largest_medium=largest_medium,
    embedding_merge_size=embedding_merge_size,
    grounding=_GROUNDING,
    reasoning="glm45",
    embedding_kinds=frozenset({MediaKind.IMAGE}),  # those of videos have no times
)
GLM46V = replace(
    GLM4V,
    layout=partial(_layout, write_time=lambda seconds: f"{seconds:.1f} seconds"),
)
