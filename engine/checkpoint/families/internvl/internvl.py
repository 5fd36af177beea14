"""InternVL3 (arXiv 2504.10479) and InternVL3.5 (arXiv 2508.18265), as transformers stores them (`-hf`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import TAGGED_BOXES, TextForm
from glimpse.engine.checkpoint.families.reading.chatml import INTERNVL_TEMPLATE
from glimpse.engine.checkpoint.families.reading.fields import require, require_fields
from glimpse.engine.checkpoint.families.reading.preprocessor import check_square
from glimpse.engine.checkpoint.families.reading.rows import whole
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import nested_decoder
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, marked_runs
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import InternVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import SegmentSampling
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import (
    PREPROCESSOR,
    check_processor,
    ordered,
    read_image_processor,
    read_video_processor,
)
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles, num_tiles
from glimpse.media.processing.sizing.square_frames import SquareFrames
from glimpse.media.processing.video import VideoProcessing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_SHUFFLE = 2
_VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "attention_bias": False,
    "use_qk_norm": False,
    "intermediate_size": 4096,
    "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6,
    "image_size": 448,
    "patch_size": 14,
}
"""Values of fields that documents may leave out (transformers, models/internvl/configuration_internvl.py)."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    require_fields(
        config,
        "",
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        downsample_ratio=1 / _SHUFFLE,
    )
    encoder = read_vision(config["vision_config"])
    require("image_seq_length", config.get("image_seq_length", 256), encoder.num_tile_tokens)
    image_id = config["image_token_id"]
    return FamilyConfig(
        text=_read_text(config),
        encoder=encoder,
        placeholder_ids={"image": image_id, "video": image_id},
        placeholder_texts={"video": "<video>"},
    )


def _read_text(config: Mapping[str, Any]) -> TextConfig:
    text: Mapping[str, Any] = config["text_config"]
    # transformers 5 writes its default, that the weights are tied, also for published checkpoints, in which they are
    # not. The decoder's own field is right in both.
    tied = bool(config.get("tie_word_embeddings", True) and text.get("tie_word_embeddings", False))
    both = {"tie_word_embeddings": tied}
    return nested_decoder({**config, **both, "text_config": {"model_type": "qwen2", **text, **both}})


def read_vision(stored: Mapping[str, Any]) -> InternVisionConfig:
    """Reads a `vision_config`. Raises CheckpointError if a value is not supported."""
    require_fields(stored, "vision_config.", hidden_act="gelu", num_channels=3)
    require_fields(stored, "vision_config.", use_absolute_position_embeddings=True, use_mean_pooling=True)
    vision = {**_VISION_DEFAULTS, **stored}
    if vision["norm_type"] not in ("layer_norm", "rms_norm"):
        raise CheckpointError(
            f"config.json: 'vision_config.norm_type': expected 'layer_norm' or 'rms_norm', got {vision['norm_type']!r}"
        )
    image_size, patch_size = _side(vision, "image_size"), _side(vision, "patch_size")
    if image_size % (_SHUFFLE * patch_size):
        raise CheckpointError(
            f"config.json: 'vision_config.image_size': expected a multiple of {_SHUFFLE} · {patch_size} pixels,"
            f" got {image_size}"
        )
    return InternVisionConfig(
        width=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        num_layers=vision["num_hidden_layers"],
        num_heads=vision["num_attention_heads"],
        image_size=image_size,
        patch_size=patch_size,
        norm_eps=vision["layer_norm_eps"],
        class_token=True,
        patch_bias=True,
        pre_norm=False,
        post_norm=False,
        rms_norm=vision["norm_type"] == "rms_norm",
        qkv_bias=vision["attention_bias"],
        query_key_norms=vision["use_qk_norm"],
        shuffle=_SHUFFLE,
    )


def _side(vision: Mapping[str, Any], field: str) -> int:
    """Returns the side of a square, which is stored as such or as height and width."""
    size = vision[field]
    side = size if isinstance(size, int) else size[0]
    if size not in (side, [side, side]):
        raise CheckpointError(f"config.json: 'vision_config.{field}': expected a square, got {size!r}")
    return side


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which are cut into tiles, and of videos, whose frames are a tile each.

    `crop_to_patches` of the file has no effect, because the reference processor overrides it.
    """
    side = config.encoder_as(InternVisionConfig).image_size
    processor = read_image_processor(path)
    check_processor(processor)
    check_square(processor, "size", side)
    min_tiles, max_tiles = ordered(processor, PREPROCESSOR, ("min_patches", 1), ("max_patches", 12))
    # It decides neither the size of frames, since the encoder reads one size alone, nor which frames are sampled, since
    # the reference samples none by default.
    read_video_processor(path, processor)
    return MediaProcessing(
        images=ImageProcessing(sizing=AspectTiles(tile=side, min_tiles=min_tiles, max_tiles=max_tiles)),
        videos=video_processing(side),
    )


def video_processing(side: int) -> VideoProcessing:
    """Returns how videos are processed: each frame is a tile of this side."""
    return VideoProcessing(sizing=SquareFrames(tile=side, longest_edge=None), sampling=SegmentSampling())


def layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Lays out the tokens of an image, all tiles in one run, or of a video, whose frames text numbers."""
    run = context.model.encoder_as(InternVisionConfig).num_tile_tokens
    marks = context.encode("<img>"), context.encode("</img>")
    if medium.kind is MediaKind.IMAGE:
        rows, columns = medium.grid[:2]
        return TokenLayout(kind=medium.kind, pieces=marked_runs(*marks, (), run * num_tiles(rows, columns)))
    others = (context.encode(f"\nFrame{number}: ") for number in range(2, medium.grid[0] + 1))
    return TokenLayout(kind=medium.kind, leading="Frame1: ", pieces=marked_runs(*marks, others, run))


def embedding_grid(config: ModelConfig, kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    """Returns one of the possible grids. Several arrangements of tiles have as many tokens, in one run alike."""
    run, is_video = config.encoder_as(InternVisionConfig).num_tile_tokens, kind is MediaKind.VIDEO
    count = whole(num_rows, run, "frame" if is_video else "tile")
    if is_video:
        return (count,)
    if count == 2:
        raise ValueError(f"expected {run} tokens for each tile: one, or several and an overview")
    return (1, max(1, count - 1))


def largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns a video of about `num_tokens` tokens."""
    encoder = config.encoder_as(InternVisionConfig)
    num_frames = max(1, num_tokens // encoder.num_tile_tokens)
    return LargestMedium.of_tiles(
        encoder, num_frames, grid=(num_frames,), kind=MediaKind.VIDEO, max_batch_tiles=encoder.max_batch_tiles
    )


GROUNDING = (TextForm(pattern=TAGGED_BOXES, scale=1000),)
"""Lists of [x1, y1, x2, y2] in thousandths of the whole image (internvl.readthedocs.io, Chat Data Format)."""
INTERNVL = FamilySpec(
    read_config=_read_config,
    module="internvl",
    fallback_template=INTERNVL_TEMPLATE,
    read_media=_read_media,
    layout=layout,
    largest_medium=largest_medium,
    embedding_grid=embedding_grid,
    grounding=GROUNDING,
)
