"""How Idefics3's and SmolVLM's checkpoints process images and videos, from their preprocessor files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Resampling

from glimpse.engine.checkpoint.families.reading.preprocessor import resampling_of
from glimpse.engine.checkpoint.model_config.encoders import TiledVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.processing.frame_sampling import IntervalSampling
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.preprocessor import check_processor, positive, read_image_processor, read_video_processor
from glimpse.media.processing.sizing.split_tiles import SplitTiles
from glimpse.media.processing.sizing.square_frames import SquareFrames
from glimpse.media.processing.video import VideoProcessing

_DEFAULT_TILE = 364
"""Default of transformers' processors."""


def read_images(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images of the checkpoint in a folder.

    Raises:
        ValueError: a file is missing, damaged, contradicts `config.json` or is not supported.
    """
    document = read_image_processor(path)
    check_processor(document, resampling=None)
    tile = _tile(document, config)
    sizing = SplitTiles(
        tile=tile,
        longest_edge=_longest_edge(document, "size", 4 * tile),
        split=bool(document.get("do_image_splitting", True)),
    )
    return MediaProcessing(
        images=ImageProcessing(sizing=sizing, resampling=resampling_of(document, Resampling.LANCZOS))
    )


def read_images_and_videos(path: Path, config: ModelConfig) -> MediaProcessing:
    """Reads the processing of images and videos: from a file of their own, or `video_sampling` of the images' file."""
    images = read_image_processor(path)
    own = read_video_processor(path, images, resampling=None)
    document = images | own
    tile = _tile(document, config)
    # transformers 5 reads these fields of videos from `video_sampling`, and writes them beside it or in its place.
    fields = {"fps": own.get("fps"), "max_frames": own.get("num_frames"), "video_size": own.get("size")}
    sampling: Mapping[str, Any] = document.get("video_sampling") or fields
    videos = VideoProcessing(
        sizing=SquareFrames(tile=tile, longest_edge=_longest_edge(sampling, "video_size", tile)),
        resampling=resampling_of(document, Resampling.LANCZOS),
        sampling=IntervalSampling(
            fps=sampling.get("fps") or 1, max_frames=positive("max_frames", sampling.get("max_frames") or 64)
        ),
    )
    return MediaProcessing(images=read_images(path, config).images, videos=videos)


def _tile(document: Mapping[str, Any], config: ModelConfig) -> int:
    encoder = config.encoder_as(TiledVisionConfig)
    tile = _longest_edge(document, "max_image_size", _DEFAULT_TILE)
    if tile != encoder.vit.image_size:
        raise ValueError(
            f"preprocessor configuration: 'max_image_size': expected vision_config.image_size of config.json,"
            f" {encoder.vit.image_size}, got {tile}"
        )
    return tile


def _longest_edge(document: Mapping[str, Any], field: str, default: int) -> int:
    size = document.get(field) or {"longest_edge": default}
    if set(size) != {"longest_edge"}:
        raise ValueError(f"preprocessor configuration: '{field}': expected 'longest_edge' alone, got {size}")
    return positive(f"{field}.longest_edge", size["longest_edge"])
