"""Image preprocessing like Qwen2-VL's: resized uint8 pixels, grid of patches and content key.

The engine normalizes the pixels and cuts them into patches.
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
    """A checkpoint's image preprocessing parameters, by default Qwen2-VL's."""

    patch_size: int = 14
    """Side of a patch in pixels."""
    merge_size: int = 2
    """Side of a token in patches."""
    temporal_patch_size: int = 2
    """Frames per patch; an image is repeated to fill it."""
    min_pixels: int = DEFAULT_MIN_PIXELS
    """Area in pixels to which smaller images are enlarged."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Area in pixels to which larger images are reduced."""
    background: Colour = (255, 255, 255)
    """RGB color behind transparent pixels."""
    fast_jpeg: bool = False
    """Decodes a JPEG of more than twice the target width and height at 1/2, 1/4 or 1/8 of its size: faster, but with
    slightly different pixels."""

    def with_options(
        self, *, min_pixels: int | None = None, max_pixels: int | None = None, background: Colour | None = None
    ) -> "ImageProcessing":
        """Returns a copy with a request's options. A default bound yields to a requested one that contradicts it.

        Raises:
            MediaError: INVALID_PARAMETER if requested bounds are out of range or contradict each other.
        """
        lower, upper = request_bounds(self.min_pixels, self.max_pixels, min_pixels=min_pixels, max_pixels=max_pixels)
        return replace(self, min_pixels=lower, max_pixels=upper, background=background or self.background)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """A preprocessed image."""

    kind: MediaKind = field(default=MediaKind.IMAGE, init=False)
    pixels: npt.NDArray[np.uint8]
    """RGB [height, width, 3], resized, read-only."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging."""
    num_tokens: int
    """Prompt tokens that the image takes."""
    key: bytes
    """Content key: SHA-256 of the pixels and the patch parameters."""


def image_processing(path: Path) -> ImageProcessing:
    """Reads a checkpoint's `preprocessor_config.json`, in the format of the published checkpoints or transformers 5.

    Raises:
        ValueError: The file is missing, is not JSON, or has unsupported values.
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
    """Preprocesses an image of any mode, size and EXIF orientation.

    Raises:
        MediaError: The image is corrupt, too elongated or of an unsupported mode; or the bounds are invalid.
    """
    bounds = processing.with_options(min_pixels=min_pixels, max_pixels=max_pixels)
    return image_from_pixels(image_pixels(image, bounds), processing)


def image_pixels(image: PIL.Image.Image, processing: ImageProcessing) -> npt.NDArray[np.uint8]:
    """Returns the pixels of an image: uint8 RGB [height, width, 3], upright, resized within the bounds, read-only.

    Raises:
        MediaError: Like `prepare_image`.
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
    """Returns the target (height, width) for an image of (width, height) before its EXIF orientation is applied."""
    width, height = reversed(own_size) if is_sideways else own_size
    return smart_resize(
        height,
        width,
        factor=processing.patch_size * processing.merge_size,
        min_pixels=processing.min_pixels,
        max_pixels=processing.max_pixels,
    )


def image_from_pixels(pixels: npt.NDArray[np.uint8], processing: ImageProcessing) -> Image:
    """Adds grid, token count and content key to the pixels of `image_pixels`."""
    height, width, _ = pixels.shape
    grid_thw = (1, height // processing.patch_size, width // processing.patch_size)
    return Image(
        pixels=pixels,
        grid_thw=grid_thw,
        num_tokens=grid_thw[1] * grid_thw[2] // processing.merge_size**2,
        key=content_key("image", pixels, processing.patch_size, processing.merge_size, processing.temporal_patch_size),
    )
