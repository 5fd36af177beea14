"""Target sizes of images, in Qwen2-VL's formulas. Pure arithmetic."""

import math

import msgspec

from glimpse.media.errors import MediaOptionError
from glimpse.media.processing.sizing.recipe import (
    LOW_DETAIL_MAX_PIXELS,
    ImageRecipe,
    check_aspect_ratio,
    check_pixel_bounds,
)
from glimpse.media.processing.sizing.views import ImagePlan, View

DEFAULT_MIN_PIXELS = 4 * 28 * 28
DEFAULT_MAX_PIXELS = 1280 * 28 * 28
LARGEST_MAX_PIXELS = 16384 * 28 * 28
"""Largest bound that a request may set: the number of tokens that Qwen2-VL supports for one image."""


class SmartResize(ImageRecipe, frozen=True, kw_only=True, tag="smart_resize"):
    """Images of any aspect ratio, by default with Qwen2-VL's parameters."""

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
    enlarges_slim: bool = False
    """Images with a side shorter than a token are enlarged until none is, before all else, as GLM's are."""
    rounds_slim: bool = False
    """Images with a side shorter than a token are enlarged side by side, to rounded lengths, as PaddleOCR-VL's are."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image resized within the bounds; its grid is (1, rows, columns) of patches. As `smart_resize`."""
        factor, sent = self.patch_size * self.merge_size, (height, width)
        if self.rounds_slim and 0 < height < factor:
            height, width = factor, round(width * factor / height)
        if self.rounds_slim and 0 < width < factor:
            height, width = round(height * factor / width), factor
        if self.enlarges_slim and (shorter := min(height, width)) < factor:
            scale = factor / shorter
            height, width = int(height * scale), int(width * scale)
        check_aspect_ratio(height, width, sent=sent)
        size = smart_resize(height, width, factor=factor, min_pixels=self.min_pixels, max_pixels=self.max_pixels)
        return ImagePlan(views=(View(resized=size),), grid=self._grid(*size))

    def key_parameters(self, grid: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - it follows from the shape
        return (self.patch_size, self.merge_size, self.temporal_patch_size)

    def with_bounds(self, *, min_pixels: int | None, max_pixels: int | None) -> "SmartResize":
        """Returns a copy with a request's bounds. A default bound yields to a requested one that contradicts it.

        Raises:
            MediaOptionError: the requested bounds are out of range or contradict each other.
        """
        lower, upper = request_bounds(self.min_pixels, self.max_pixels, min_pixels=min_pixels, max_pixels=max_pixels)
        return msgspec.structs.replace(self, min_pixels=lower, max_pixels=upper)

    def low_detail(self) -> "SmartResize":
        lower, upper = (min(bound, LOW_DETAIL_MAX_PIXELS) for bound in (self.min_pixels, self.max_pixels))
        return msgspec.structs.replace(self, min_pixels=lower, max_pixels=upper)

    def _grid(self, height: int, width: int) -> tuple[int, ...]:
        return (1, height // self.patch_size, width // self.patch_size)


def smart_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int, shortest: int = 0
) -> tuple[int, int]:
    """Returns the size closest to an image's own whose sides are multiples of `factor` and whose area is within bounds.

    The formula, including its rounding, is Qwen2-VL's (`smart_resize` in the image processor of transformers), so that
    an image becomes the same tokens. A side is never less than `factor`, even if the area is then out of bounds.

    Args:
        height: In pixels.
        width: In pixels.
        factor: Side of a token in pixels.
        min_pixels: Area to which smaller images are enlarged; at least 1.
        max_pixels: Area to which larger images are reduced.
        shortest: Length below which no side is rounded. It counts before areas are compared.

    Returns:
        (height, width), in pixels.

    Raises:
        MediaError: INVALID_MEDIA if a side is 0 or more than 200 times the other.
    """
    check_aspect_ratio(height, width)
    new_height = max(round(height / factor) * factor, shortest)
    new_width = max(round(width / factor) * factor, shortest)
    if new_height * new_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def request_bounds(own_min: int, own_max: int, *, min_pixels: int | None, max_pixels: int | None) -> tuple[int, int]:
    """Returns the bounds on an image's area: the request's, else the checkpoint's.

    If the request sets only one bound, the checkpoint's other bound is moved so that it does not contradict it.

    Raises:
        MediaOptionError: The request's bounds are out of range or contradict each other.
    """
    for name, pixels in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        if pixels is not None and not 1 <= pixels <= LARGEST_MAX_PIXELS:
            raise MediaOptionError(name, f"expected an integer from 1 to {LARGEST_MAX_PIXELS}, got {pixels}")
    check_pixel_bounds(min_pixels, max_pixels)
    lower = min(own_min, max_pixels or own_min) if min_pixels is None else min_pixels
    upper = max(own_max, min_pixels or own_max) if max_pixels is None else max_pixels
    return lower, upper
