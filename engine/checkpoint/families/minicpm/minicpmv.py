"""MiniCPM-V 2.6 (arXiv 2408.01800), 4.0 and 4.5 (arXiv 2509.18154), as published: `MiniCPMV` with their `version`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.grounding import TAGGED_BOXES, TextForm
from glimpse.engine.checkpoint.families.reading.fields import require
from glimpse.engine.checkpoint.families.reading.rows import whole
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import nested_decoder
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, Piece, TokenLayout, around_runs
from glimpse.engine.checkpoint.model_config.encoders import MergedVisionConfig, ResampledVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import SegmentSampling, StrideSampling
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import PREPROCESSOR, check_fields, positive, read_image_processor
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.scaled_frames import ScaledFrames
from glimpse.media.processing.video import VideoProcessing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_HEAD_DIM = 128
"""Head size of the resampler's attention."""
_VISION_DEFAULTS: Mapping[str, Any] = {
    "model_type": "siglip",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 980,
    "patch_size": 14,
}
"""Values of fields that documents may leave out."""
_MARKS: Mapping[str, str] = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "unk": "<unk>",
    "im_id_start": "<image_id>",
    "im_id_end": "</image_id>",
}
"""Fields of the preprocessor's file → tokens around and in images."""
_MARKERS: Mapping[str, str] = {"image": "(<image>./</image>)", "video": "(<video>./</video>)"}
"""What stands for media in a rendered prompt. That of videos is vLLM's; the published code takes frames as images."""
_DECODERS: Mapping[str, str] = {"2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
"""`version` → kind of the decoder."""
_MAX_PACKED_FRAMES: Mapping[str, int] = {"4.5": 3}
"""`version` → most frames that are encoded together, if there may be several."""
_MAX_FRAMES = 240
"""Most frames that 4.5 samples at a rate: about as many as `ScaledFrames` takes."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    version = str(config.get("version", "2.0 or 2.5"))
    if version not in _DECODERS:
        raise CheckpointError(f"config.json: 'version': expected one of {', '.join(_DECODERS)}; got {version}")
    require("slice_mode", config.get("slice_mode", True), True)
    text = {"tie_word_embeddings": False, **config, "model_type": _DECODERS[version]}
    encoder = replace(_read_vision(config), max_packed_frames=_MAX_PACKED_FRAMES.get(version, 1))
    return FamilyConfig(
        text=nested_decoder({"text_config": text}),
        encoder=encoder,
        placeholder_ids={},
        placeholder_tokens=dict.fromkeys(_MARKERS, _MARKS["unk"]),
        placeholder_texts=_MARKERS,
    )


def _read_vision(config: Mapping[str, Any]) -> ResampledVisionConfig:
    vision = {**_VISION_DEFAULTS, **config.get("vision_config", {})}
    if vision["model_type"] not in ("siglip", "siglip_vision_model"):
        raise CheckpointError(
            f"config.json: 'vision_config.model_type': expected 'siglip', got {vision['model_type']!r}"
        )
    num_layers = vision["num_hidden_layers"] - bool(config.get("drop_vision_last_layer"))
    width = config["hidden_size"]
    if width % _HEAD_DIM:
        raise CheckpointError(f"config.json: 'hidden_size': expected a multiple of {_HEAD_DIM}, got {width}")
    return ResampledVisionConfig(
        vit=vit_config({**vision, "model_type": "siglip_vision_model", "num_hidden_layers": num_layers}),
        num_queries=config["query_num"],
        num_heads=width // _HEAD_DIM,
    )


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    encoder = config.encoder_as(ResampledVisionConfig)
    processor = read_image_processor(path)
    expected = {"patch_size": encoder.vit.patch_size, "image_feature_size": encoder.num_queries}
    check_fields(processor, PREPROCESSOR, {**expected, "slice_mode": True, "use_image_id": True, **_MARKS})
    scale = positive("scale_resolution", processor.get("scale_resolution", 448))
    if scale < encoder.vit.patch_size:
        raise ValueError(f"{PREPROCESSOR}: 'scale_resolution': expected at least a patch's side, got {scale}")
    max_slices = positive("max_slice_nums", processor.get("max_slice_nums", 9))
    sizing = AdaptiveSlices(scale=scale, patch_size=encoder.vit.patch_size, max_slices=max_slices)
    return MediaProcessing(images=ImageProcessing(sizing=sizing), videos=_video_processing(encoder, scale))


def _video_processing(encoder: ResampledVisionConfig, scale: int) -> VideoProcessing:
    """Returns how videos are processed, which is what the scripts in the published model cards do."""
    packed = encoder.max_packed_frames
    return VideoProcessing(
        sizing=ScaledFrames(scale=scale, patch_size=encoder.vit.patch_size, max_packed=packed),
        sampling=(
            StrideSampling() if packed == 1 else SegmentSampling(fps=3, max_frames_at_rate=_MAX_FRAMES, rounds_up=True)
        ),
    )


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image or video."""
    encoder = context.model.encoder_as(ResampledVisionConfig)
    run = encoder.num_queries
    if medium.kind is MediaKind.VIDEO:  # packs of frames are images without numbers, in lines
        others = ["</image>\n<image>"] * (encoder.num_packs(medium.grid) - 1)
        literals = map(context.encode, ["<image>", *others, "</image>"])
        return TokenLayout(kind=medium.kind, pieces=around_runs(literals, run))
    return TokenLayout(kind=medium.kind, pieces=tuple(image_pieces(medium, context, run, run)))


def _embedding_grid(config: ModelConfig, kind: MediaKind, num_rows: int) -> tuple[int, ...] | None:
    """Returns the grid of an overview alone, or of so many frames; the size of an image arranges slices."""
    is_video = kind is MediaKind.VIDEO
    count = whole(
        num_rows, config.encoder_as(ResampledVisionConfig).num_queries, "pack of frames" if is_video else "slice"
    )
    if is_video:
        return (count, 1, 1)
    return (1, 1, 0, 0, 0, 0) if count == 1 else None


def image_pieces(image: "Medium", context: LayoutContext, of_overview: int, of_slice: int) -> list[Piece]:
    """Returns the number of an image, its overview, and its slices in lines, with so many tokens of each."""
    rows, columns = list(image.grid)[2:4]
    starts = ["\n<slice>" if index and index % columns == 0 else "<slice>" for index in range(rows * columns)]
    ends = ["</image>", *["</slice>"] * len(starts)]
    pieces: list[Piece] = [tuple(context.encode(f"<image_id>{context.index}</image_id><image>"))]
    for end, start in zip(ends, [*starts, ""], strict=True):
        pieces += [of_slice if end == "</slice>" else of_overview, tuple(context.encode(end + start))]
    return pieces


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """See `largest_slices`."""
    encoder = config.encoder_as(ResampledVisionConfig)
    return largest_slices(encoder, num_tokens, lambda _rows, _columns: encoder.num_queries)


def largest_slices(
    encoder: ResampledVisionConfig | MergedVisionConfig, num_tokens: int, tokens_of: Callable[[int, int], int]
) -> LargestMedium:
    """Returns an image of about `num_tokens` tokens, whose slices have the size of those of published checkpoints.

    Args:
        tokens_of: Returns the tokens of a slice of so many rows and columns of patches.
    """
    side, patch = 448 // encoder.vit.patch_size, encoder.vit.patch_size
    columns = min(max(2, num_tokens // tokens_of(side, side) - 1), encoder.max_batch_slices)
    return LargestMedium(
        kind=MediaKind.IMAGE,
        grid=(side, side, 1, columns, side, side),
        num_bytes=3 * (1 + columns) * (side * patch) ** 2,
        num_positions=columns * side**2,
        width=encoder.vit.width,
        intermediate_size=encoder.vit.intermediate_size,
    )


_GROUNDING = (
    TextForm(pattern=TAGGED_BOXES, scale=1000),
    TextForm(pattern=re.compile(r"(?:<ref>(?P<label>[^<]*)</ref>\s*)?<point>(?P<point>[^<]*)</point>"), scale=1000),
)
"""x1 y1 x2 y2, or x y, in thousandths of the whole image (the authors, OpenBMB/MiniCPM-V issues 185 and 982)."""
MINICPMV = FamilySpec(
    read_config=_read_config,
    module="minicpmv",
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    grounding=_GROUNDING,
)
