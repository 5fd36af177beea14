"""LLaVA-OneVision (arXiv 2408.03326); and LLaVA-NeXT, which is also called LLaVA-1.6: LLaVA-1.5 with the tiles of each
image of a prompt."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from glimpse.engine.checkpoint.families.llava.llava import llava_encoder, token_id
from glimpse.engine.checkpoint.families.reading.preprocessor import check_square
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import nested_decoder, nested_eos_token_ids
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout, one_run
from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.frame_sampling import EndpointSampling
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import (
    PREPROCESSOR,
    VIDEO_PREPROCESSOR,
    check_processor,
    read_image_processor,
    read_video_processor,
)
from glimpse.media.processing.sizing.any_res import AnyRes
from glimpse.media.processing.sizing.square_frames import SquareFrames
from glimpse.media.processing.sizing.views import Size
from glimpse.media.processing.video import VideoProcessing

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_SAMPLING = EndpointSampling(fps=1.0, max_frames_at_rate=32)
"""The model was trained with up to 32 frames."""

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + ' ' }}
{%- for part in message.content if part.type not in ('image', 'video', 'text') %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endfor %}
{%- for part in message.content if part.type == 'image' %}
{{- '<image>' }}
{%- endfor %}
{%- for part in message.content if part.type == 'video' %}
{{- '<video>' }}
{%- endfor %}
{%- for part in message.content if part.type == 'text' %}
{{- '\\n' + part.text }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""LLaVA-OneVision's variant of ChatML, with a message's images and then its videos before its texts."""

_RESOLUTIONS = tuple((height, width) for height in range(384, 2305, 384) for width in range(384, 2305, 384))
_NEXT_RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


def _read_config(config: Mapping[str, Any]) -> FamilyConfig:
    aspect = config.get("vision_aspect_ratio", "anyres_max_9")
    match = re.fullmatch(r"anyres_max_([1-9]\d*)", str(aspect))
    if match is None:
        raise CheckpointError(f"config.json: 'vision_aspect_ratio': expected 'anyres_max_N', got {aspect!r}")
    tower = llava_encoder(config, feature_layer=-1, strategy="full")
    if tower.vit.class_token or tower.drops_first:
        raise CheckpointError("config.json: 'vision_config.model_type': expected an encoder without class token")
    return FamilyConfig(
        text=nested_decoder(config),
        encoder=LlavaOneVisionConfig(
            tower=tower,
            resolutions=_read_resolutions(config, _RESOLUTIONS, tile=tower.vit.image_size),
            max_tiles=int(match[1]),
        ),
        placeholder_ids={"image": token_id(config, "image"), "video": token_id(config, "video")},
        eos_token_ids=nested_eos_token_ids(config),
    )


def _read_resolutions(config: Mapping[str, Any], default: tuple[Size, ...], *, tile: int) -> tuple[Size, ...]:
    """Returns the resolutions of images that are cut into tiles. Raises CheckpointError.

    Args:
        default: those of a document without any.
        tile: side of a tile in pixels.
    """
    pinpoints: list[list[int]] | None = config.get("image_grid_pinpoints")
    resolutions = default if pinpoints is None else tuple((height, width) for height, width in pinpoints)
    if not resolutions or any(side % tile for resolution in resolutions for side in resolution):
        raise CheckpointError(
            f"config.json: 'image_grid_pinpoints': expected multiples of the encoder's {tile} pixels,"
            f" got {[list(each) for each in resolutions]}"
        )
    return resolutions


def _read_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which are cut into tiles or padded to squares, and of videos."""
    processor = read_image_processor(path)
    sizing = _read_tiles(processor, config, _RESOLUTIONS)
    check_square(processor, "size", sizing.tile)
    if "image_mean" not in processor:
        raise ValueError(f"{PREPROCESSOR}: missing field 'image_mean'")
    if videos := read_video_processor(path, processor):  # frames are sampled here in any case
        check_square(videos, "size", sizing.tile, VIDEO_PREPROCESSOR)
    red, green, blue = (int(255 * value) for value in processor["image_mean"])
    return MediaProcessing(
        images=ImageProcessing(sizing=structs.replace(sizing, padding=(red, green, blue))),
        videos=VideoProcessing(sizing=SquareFrames(tile=sizing.tile, longest_edge=None), sampling=_SAMPLING),
    )


def _read_tiles(processor: Mapping[str, Any], config: ModelConfig, default: tuple[Size, ...]) -> AnyRes:
    """Returns how images are cut into tiles of the encoder's size.

    Args:
        default: the resolutions of a document without any.

    Raises:
        ValueError: a value is not supported, or contradicts `config.json`.
    """
    encoder = config.encoder_as(LlavaOneVisionConfig)
    check_processor(processor)
    resolutions = processor.get("image_grid_pinpoints", [list(each) for each in default])
    if sorted(map(tuple, resolutions)) != sorted(encoder.resolutions):
        raise ValueError(f"{PREPROCESSOR}: 'image_grid_pinpoints': expected those of config.json, got {resolutions}")
    vit = encoder.tower.vit
    return AnyRes(tile=vit.image_size, tile_patches=vit.side, resolutions=encoder.resolutions)


def _tokens_of_tiles(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image or video; those between rows are part of the encoder output. Grids of embeddings
    have three sides."""
    if len(medium.grid) == 3:
        return one_run(medium.kind, math.prod(medium.grid))
    encoder = context.model.encoder_as(LlavaOneVisionConfig)
    is_video = medium.kind is MediaKind.VIDEO
    count = encoder.num_video_tokens(medium.grid[0]) if is_video else encoder.num_image_tokens(medium.grid)
    return one_run(medium.kind, count)


def _embedding_grid(config: ModelConfig, kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    """Returns the grid of one run: how many of its rows are tiles makes no difference in a prompt."""
    encoder = config.encoder_as(LlavaOneVisionConfig)
    if kind is MediaKind.VIDEO:
        frame = encoder.video_side**2
        if num_rows % frame != 1 % frame or num_rows < 2:
            raise ValueError(f"expected {frame} tokens for each frame, and one after the last")
    elif num_rows <= encoder.tower.num_tokens:
        least = encoder.tower.num_tokens + 1
        raise ValueError(f"expected at least {least} tokens, those of an overview and the ends of lines")
    return (1, 1, num_rows)


def _largest_image(config: ModelConfig, _num_tokens: int) -> LargestMedium:
    """Returns the image of the most tiles."""
    encoder = config.encoder_as(LlavaOneVisionConfig)
    vit = encoder.tower.vit
    height, width = max(encoder.resolutions, key=math.prod)
    rows, columns = height // vit.image_size, width // vit.image_size
    num_tiles = rows * columns + 1
    return LargestMedium.of_tiles(vit, num_tiles, grid=(rows, columns, rows * vit.side, columns * vit.side))


LLAVA_ONEVISION = FamilySpec(
    read_config=_read_config,
    module="llava.llava_onevision",
    fallback_template=TEMPLATE,
    read_media=_read_media,
    layout=_tokens_of_tiles,
    largest_medium=_largest_image,
    embedding_grid=_embedding_grid,
)


def _read_next_config(config: Mapping[str, Any]) -> FamilyConfig:
    tower = llava_encoder(config, feature_layer=-2, strategy="default")
    tile = tower.vit.image_size
    if tower.num_tokens != tower.vit.side**2:
        raise CheckpointError(
            "config.json: 'vision_feature_select_strategy': expected 'default', since tiles have no class token,"
            " got 'full'"
        )
    resolutions = _read_resolutions(config, _NEXT_RESOLUTIONS, tile=tile)
    # Features are never reduced: no image has more tiles than the largest resolution.
    max_tiles = max(map(math.prod, resolutions)) // tile**2
    # Unlike in LLaVA-1.5 and LLaVA-OneVision, `text_config` alone does not tie the weights in transformers.
    text = {**config["text_config"], "tie_word_embeddings": False}
    return FamilyConfig(
        text=nested_decoder({**config, "text_config": text}),
        encoder=LlavaOneVisionConfig(tower=tower, resolutions=resolutions, max_tiles=max_tiles),
        placeholder_ids={"image": token_id(config, "image")},
        eos_token_ids=nested_eos_token_ids(config),
    )


def _read_next_media(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images, which are cut into tiles, also those of a prompt with several."""
    processor = read_image_processor(path)
    sizing = _read_tiles(processor, config, _NEXT_RESOLUTIONS)
    if processor.get("size") != {"shortest_edge": sizing.tile}:  # of the overview, which is stretched to a square
        check_square(processor, "size", sizing.tile)
    check_square(processor, "crop_size", sizing.tile)
    return MediaProcessing(images=ImageProcessing(sizing=structs.replace(sizing, tiles_several=True)))


LLAVA_NEXT = FamilySpec(
    read_config=_read_next_config,
    module="llava.llava_onevision",
    read_media=_read_next_media,
    layout=_tokens_of_tiles,
    largest_medium=_largest_image,
    embedding_grid=_embedding_grid,
)
