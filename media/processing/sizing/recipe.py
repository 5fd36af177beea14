"""How a model family makes the pixels for its encoder: the base of all recipes.

Recipes are frozen structs, since they travel to decoding workers. They only calculate; the pixels are made in
`glimpse.media.processing.render`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Self

import msgspec

from glimpse.media.errors import MediaError, MediaErrorCode, MediaOptionError
from glimpse.media.processing.sizing.views import ImagePlan, Size, View

LOW_DETAIL_MAX_PIXELS = 512 * 512
"""Largest area of an image of low detail, which OpenAI documents as 512×512."""


class Detail(Enum):
    """How large an image may be, as OpenAI names it."""

    AUTO = "auto"
    """Up to the bound of the request or the server."""
    LOW = "low"
    """Also up to `LOW_DETAIL_MAX_PIXELS`."""
    ORIGINAL = "original"
    """Up to the bound of the request or the checkpoint."""


MAX_ASPECT_RATIO = 200
"""Qwen2-VL's limit, and Glimpse's for models without one that resize by the shorter side or keep the area: most pixels
would be cut off, or patches become more and more."""


class ImageRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe for images."""

    @abstractmethod
    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns what becomes of an upright image of this size.

        Raises:
            MediaError: INVALID_MEDIA: the model cannot read images of this size.
        """

    def tiles(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, Size]:  # noqa: ARG002 - for recipes that override it
        """Returns the number of tiles of an image with pixels of this shape and this grid, and the size of the largest.

        Default: tiles have one size, and pixels are [tiles, height, width, 3] or [height, width, 3].
        """
        *tiles, height, width, _ = shape
        return (tiles[0] if tiles else 1), (height, width)

    def key_parameters(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Returns what an encoder output depends on besides the pixels and their shape."""
        return grid

    def among_others(self) -> Self:
        """Returns the recipe for the images of a prompt that has several. Default: the same."""
        return self

    def with_bounds(self, *, min_pixels: int | None, max_pixels: int | None) -> Self:
        """Returns the recipe with a request's bounds on an image's area.

        Raises:
            MediaOptionError: a bound cannot be honored. Only recipes that keep aspect ratios override this.
        """
        _refuse(min_pixels=min_pixels, max_pixels=max_pixels)
        return self

    def low_detail(self) -> Self:
        """Returns the recipe for images of at most `LOW_DETAIL_MAX_PIXELS`.

        Raises:
            MediaOptionError: its images are larger. Recipes whose images are not override this.
        """
        raise MediaOptionError(
            "detail", "expected 'auto' or 'high', since the model decides the size in pixels, got 'low'"
        )


class VideoRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe for the frames of a video, which all have one size."""

    @abstractmethod
    def plan(self, num_frames: int, height: int, width: int) -> View:
        """Returns what becomes of each frame, which is a single tile.

        Args:
            height: Height of a frame before it is resized, in pixels.
            width: Width of a frame before it is resized, in pixels.

        Raises:
            MediaError: INVALID_MEDIA or TOO_LARGE: the model cannot read frames of this size.
        """

    @abstractmethod
    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, ...]:
        """Returns the grid of frames of this size after they are resized, as in `MediaSpan` of the engine."""

    def times(self, frame_seconds: Sequence[float]) -> tuple[int, ...]:  # noqa: ARG002 - for recipes that override it
        """Returns what the encoder knows of the times of frames, which follows the grid. Default: nothing."""
        return ()

    @abstractmethod
    def fits(self, num_frames: int, height: int, width: int) -> bool:
        """Whether some video becomes that many frames of this size. Decoding workers are not trusted."""

    @property
    def key_parameters(self) -> tuple[int, ...]:
        """What an encoder output depends on besides the pixels and their shape."""
        return ()

    def with_bounds(self, *, min_pixels: int | None, max_pixels: int | None, total_pixels: int | None) -> Self:
        """Returns the recipe with a request's bounds on the area of a frame, and of all frames together.

        Raises:
            MediaOptionError: a bound cannot be honored. Only recipes that keep aspect ratios override this.
        """
        _refuse(min_pixels=min_pixels, max_pixels=max_pixels, total_pixels=total_pixels)
        return self


def _refuse(**bounds: int | None) -> None:
    for name, value in bounds.items():
        if value is not None:
            raise MediaOptionError(name, f"expected none, since the model decides the size in pixels, got {value}")


def check_sides(height: int, width: int, *, of: str = "an image") -> None:
    """Raises MediaError (INVALID_MEDIA) if a side is 0."""
    if min(height, width) < 1:
        raise _invalid(f"expected {of} of at least 1×1 pixels, got {width}×{height}")


def check_aspect_ratio(height: int, width: int, *, sent: tuple[int, int] | None = None) -> None:
    """Raises MediaError (INVALID_MEDIA) if a side is 0 or more than `MAX_ASPECT_RATIO` times the other.

    Args:
        sent: Height and width of the image before it was enlarged, which the error tells.
    """
    check_sides(height, width)
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        height, width = sent or (height, width)
        raise _invalid(f"expected an aspect ratio of at most {MAX_ASPECT_RATIO}:1, got {width}×{height} pixels")


def too_elongated(height: int, width: int) -> MediaError:
    """Returns the error of an image for which the model has no tiles."""
    return _invalid(f"the image is too elongated for the model, got {width}×{height} pixels")


def check_pixel_bounds(min_pixels: int | None, max_pixels: int | None) -> None:
    """Raises MediaOptionError if the bounds contradict each other."""
    if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
        raise MediaOptionError("min_pixels", f"expected at most 'max_pixels' ({max_pixels}), got {min_pixels}")


def check_image_bounds(min_pixels: int | None, max_pixels: int | None, detail: Detail) -> None:
    """Raises MediaOptionError if the bounds contradict each other, or the detail."""
    check_pixel_bounds(min_pixels, max_pixels)
    if detail is Detail.LOW and (min_pixels or 0) > LOW_DETAIL_MAX_PIXELS:
        raise MediaOptionError(
            "min_pixels", f"expected at most {LOW_DETAIL_MAX_PIXELS} with low detail, got {min_pixels}"
        )


def _invalid(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_MEDIA, message)
