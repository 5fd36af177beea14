"""A picture as the engine takes it: resized pixels, their grid of patches, their content key.

Knows Qwen2-VL's processing up to the point where numbers become floats; normalising and patches are the engine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image

from glimpse.media.containers.still import load_pixels
from glimpse.media.key import content_key
from glimpse.media.kind import MediaKind
from glimpse.media.processing.preprocessor import check_resampling, positive, read_json
from glimpse.media.processing.resize import resize
from glimpse.media.processing.rgb import Colour, is_sideways, upright_rgb
from glimpse.media.processing.smart_resize import request_bounds, smart_resize

DEFAULT_MIN_PIXELS = 4 * 28 * 28
DEFAULT_MAX_PIXELS = 1280 * 28 * 28


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProcessing:
    """How a checkpoint wants its pictures."""

    patch_size: int
    """Pixels of a patch's side."""
    merge_size: int
    """Patches of a side that become one token."""
    temporal_patch_size: int
    """Frames of a patch; a picture is repeated to fill it."""
    min_pixels: int
    """Smaller pictures are enlarged to this area."""
    max_pixels: int
    """Larger pictures are reduced to this area."""
    background: Colour = (255, 255, 255)
    """What shows through where a picture is transparent."""
    fast_jpeg: bool = False
    """JPEGs of more than twice the width and height that is wanted are decoded at half of theirs, or a quarter, or an
    eighth: sooner, and not quite the same."""

    def with_options(
        self, *, min_pixels: int | None = None, max_pixels: int | None = None, background: Colour | None = None
    ) -> "ImageProcessing":
        """The same with a request's own wishes; a default bound gives way to one that was asked for.

        Raises:
            MediaError: INVALID_PARAMETER if the bounds contradict each other or are out of range.
        """
        lower, upper = request_bounds(self.min_pixels, self.max_pixels, min_pixels=min_pixels, max_pixels=max_pixels)
        return replace(self, min_pixels=lower, max_pixels=upper, background=background or self.background)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """An image that is ready for the engine."""

    kind: MediaKind = field(default=MediaKind.IMAGE, init=False)
    pixels: npt.NDArray[np.uint8]
    """[height, width, 3], RGB, resized; read-only."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging."""
    num_tokens: int
    """Tokens that it takes in a prompt."""
    key: bytes
    """SHA-256 of the pixels and of how they become patches: equal exactly for what the engine would compute alike."""


def image_processing(path: Path) -> ImageProcessing:
    """Reads a checkpoint's `preprocessor_config.json`, of the published checkpoints' form or transformers 5's.

    Raises:
        ValueError: it is not there, is not JSON, or asks for what is not done here.
    """
    config = read_json(path / "preprocessor_config.json")
    check_resampling(config)
    size: Mapping[str, Any] = config.get("size") or {}
    own_min = config.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge")
    own_max = config.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge")
    max_pixels = min(positive("max_pixels", own_max or DEFAULT_MAX_PIXELS), DEFAULT_MAX_PIXELS)
    return ImageProcessing(
        patch_size=positive("patch_size", config.get("patch_size", 14)),
        merge_size=positive("merge_size", config.get("merge_size", 2)),
        temporal_patch_size=positive("temporal_patch_size", config.get("temporal_patch_size", 2)),
        min_pixels=min(positive("min_pixels", own_min or DEFAULT_MIN_PIXELS), max_pixels),
        max_pixels=max_pixels,
    )


def prepare_image(
    image: PIL.Image.Image,
    processing: ImageProcessing,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> Image:
    """Makes a picture of any mode, size and orientation ready for the engine.

    Raises:
        MediaError: the picture is damaged, too long for its width, of unknown colours; or the bounds are wrong.
    """
    bounds = processing.with_options(min_pixels=min_pixels, max_pixels=max_pixels)
    return image_from_pixels(image_pixels(image, bounds), processing)


def image_pixels(image: PIL.Image.Image, processing: ImageProcessing) -> npt.NDArray[np.uint8]:
    """What the model sees of a picture: [height, width, 3], RGB, resized within the bounds of `processing`; read-only.

    Raises:
        MediaError: as `prepare_image`.
    """
    own_size = image.size
    if processing.fast_jpeg and image.format == "JPEG":
        height, width = _size(own_size, is_sideways(image), processing)
        image.draft("RGB", (height, width) if is_sideways(image) else (width, height))
    load_pixels(image)
    height, width = _size(own_size, is_sideways(image), processing)
    pixels = np.empty((height, width, 3), np.uint8)
    resize(upright_rgb(image, processing.background), into=pixels)
    pixels.flags.writeable = False
    return pixels


def _size(own_size: tuple[int, int], is_sideways: bool, processing: ImageProcessing) -> tuple[int, int]:
    """(height, width) to which a picture is resized that is this wide and high before it is turned upright."""
    width, height = reversed(own_size) if is_sideways else own_size
    return smart_resize(
        height,
        width,
        factor=processing.patch_size * processing.merge_size,
        min_pixels=processing.min_pixels,
        max_pixels=processing.max_pixels,
    )


def image_from_pixels(pixels: npt.NDArray[np.uint8], processing: ImageProcessing) -> Image:
    """Names the picture of what `image_pixels` gives."""
    height, width, _ = pixels.shape
    grid_thw = (1, height // processing.patch_size, width // processing.patch_size)
    return Image(
        pixels=pixels,
        grid_thw=grid_thw,
        num_tokens=grid_thw[1] * grid_thw[2] // processing.merge_size**2,
        key=content_key("image", pixels, processing.patch_size, processing.merge_size, processing.temporal_patch_size),
    )
