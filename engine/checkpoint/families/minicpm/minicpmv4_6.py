"""MiniCPM-V 4.6: Qwen3.5's decoder, and slices as in MiniCPM-V 2.6, whose tokens follow from their sizes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.minicpm.minicpmv import image_pieces, largest_slices
from glimpse.engine.checkpoint.families.qwen.qwen3_5_text import read_decoder
from glimpse.engine.checkpoint.families.reading.fields import require_fields
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, around_runs
from glimpse.engine.checkpoint.model_config.encoders import MERGED_SIDE, MergedVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import InstantSampling
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import (
    PREPROCESSOR,
    VIDEO_PREPROCESSOR,
    check_fields,
    check_processor,
    positive,
    read_image_processor,
    read_video_processor,
)
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.scaled_frames import ScaledFrames
from glimpse.media.processing.video import VideoProcessing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_SUPPORTED: Mapping[str, Any] = {
    "downsample_mode": "16x",
    "drop_vision_last_layer": False,
    "merge_kernel_size": [2, 2],
    "merger_times": 1,
}
"""Fields of `config.json` → the only supported value, which is that of documents without the field."""


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    require_fields(config, "", **_SUPPORTED)
    text: Mapping[str, Any] = config["text_config"]
    return FamilyConfig(
        text=read_decoder(text, tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))),
        encoder=_read_vision(config["vision_config"], config.get("insert_layer_id", 6)),
        placeholder_ids={"image": config["image_token_id"], "video": config["video_token_id"]},
        dtype="bfloat16",
    )


def _read_vision(vision: Mapping[str, Any], merger: int) -> MergedVisionConfig:
    """Reads the encoder. `merger`: index of the layer after which patches are merged."""
    require_fields(vision, "vision_config.", model_type="minicpmv4_6_vision", window_kernel_size=[2, 2])
    vit = vit_config({**vision, "model_type": "siglip_vision_model"})
    if not 0 <= merger < vit.num_layers:
        raise CheckpointError(f"config.json: 'insert_layer_id': expected one of {vit.num_layers} layers, got {merger}")
    return MergedVisionConfig(vit=vit, num_layers_before=merger + 1)


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    patch_size = config.encoder_as(MergedVisionConfig).vit.patch_size
    images = read_image_processor(path)
    check_processor(images)
    shared = {"patch_size": patch_size, "downsample_mode": "16x"}
    check_fields(images, PREPROCESSOR, {**shared, "slice_mode": True, "use_image_id": True})
    videos = read_video_processor(path, images) or {}
    check_fields(videos, VIDEO_PREPROCESSOR, {**shared, "stack_frames": 1})
    slices = AdaptiveSlices(
        scale=_scale(images),
        patch_size=patch_size,
        merge_size=MERGED_SIDE,
        max_slices=positive("max_slice_nums", images.get("max_slice_nums", 9)),
    )
    frames = ScaledFrames(scale=_scale(videos), patch_size=patch_size, merge_size=MERGED_SIDE)
    sampling = InstantSampling(max_frames_at_rate=positive("max_num_frames", videos.get("max_num_frames", 128)))
    return MediaProcessing(
        images=ImageProcessing(sizing=slices), videos=VideoProcessing(sizing=frames, sampling=sampling)
    )


def _scale(processor: Mapping[str, Any]) -> int:
    return positive("scale_resolution", processor.get("scale_resolution", 448))


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image; or of a video: an overview of each frame, without a number."""
    num_tokens = context.model.encoder_as(MergedVisionConfig).num_tokens
    if medium.kind is MediaKind.IMAGE:
        own_rows, own_columns, _, _, *of_slice = list(medium.grid)
        pieces = image_pieces(medium, context, num_tokens(own_rows, own_columns), num_tokens(*of_slice))
        return TokenLayout(kind=medium.kind, pieces=tuple(pieces))
    num_frames, rows, columns = list(medium.grid)
    literals = ["<image>", *["</image><image>"] * (num_frames - 1), "</image>"]
    pieces = around_runs(map(context.encode, literals), num_tokens(rows, columns))
    return TokenLayout(kind=medium.kind, pieces=pieces)


def _embedding_grid(_config: ModelConfig, _kind: MediaKind, _num_rows: int) -> None:
    """Returns that the size of an image is needed: it says how many slices its rows are."""


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """See `largest_slices`."""
    encoder = config.encoder_as(MergedVisionConfig)
    return largest_slices(encoder, num_tokens, encoder.num_tokens)


MINICPMV4_6 = FamilySpec(
    read_config=_read_config,
    module="minicpmv",
    read_media=_read_media,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    embedding_kinds=frozenset({MediaKind.IMAGE}),  # rows of a video do not say how many frames they are
)
