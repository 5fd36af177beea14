"""Target sizes of a video's frames, in Qwen2-VL's formulas. Pure arithmetic."""

import math

import msgspec

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.sizing.recipe import VideoRecipe
from glimpse.media.processing.sizing.smart_resize import request_bounds, smart_resize
from glimpse.media.processing.sizing.views import Size, View

DEFAULT_MIN_PIXELS = 128 * 28 * 28
DEFAULT_MAX_PIXELS = 768 * 28 * 28
DEFAULT_TOTAL_PIXELS = 24576 * 28 * 28
LARGEST_TOTAL_PIXELS = 32768 * 28 * 28
"""Largest `total_pixels` that a request may set: Qwen2-VL's context window has no room for more tokens."""
LARGEST_FRAMES_PIXELS = 2 * LARGEST_TOTAL_PIXELS
"""Limit on all frames of a video together where frames do not share tokens: about 256 frames of 448² pixels."""


class PatchedFrames(VideoRecipe, frozen=True, kw_only=True):
    """Frames of any aspect ratio that are cut into patches over several frames."""

    patch_size: int = 14
    """Side of a patch in pixels."""
    merge_size: int = 2
    """Side of a token in patches."""
    temporal_patch_size: int = 2
    """Frames per patch; the last frame is repeated to fill it."""

    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, ...]:
        """Returns patches in time, height and width, before merging."""
        return (-(-num_frames // self.temporal_patch_size), height // self.patch_size, width // self.patch_size)

    def fits(self, num_frames: int, height: int, width: int) -> bool:
        side = self.patch_size * self.merge_size
        return num_frames * height * width <= self._most_pixels and height % side == width % side == 0

    @property
    def key_parameters(self) -> tuple[int, ...]:
        return (self.patch_size, self.merge_size, self.temporal_patch_size)

    def view(self, num_frames: int, size: Size) -> View:
        """Returns frames of a size. Raises MediaError (TOO_LARGE) if they are too many for a context window."""
        height, width = size
        if num_frames * height * width > self._most_pixels:
            message = (
                f"expected at most {self._most_pixels} pixels after resizing, got {num_frames} frames "
                f"of {width}×{height} pixels; sample fewer frames (fps, max_frames) or reduce min_pixels and max_pixels"
            )
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        return View(resized=size)

    @property
    def _most_pixels(self) -> int:
        return self.temporal_patch_size * LARGEST_TOTAL_PIXELS


class SmartFrames(PatchedFrames, frozen=True, kw_only=True, tag="smart_frames"):
    """Frames of any aspect ratio, by default with Qwen2-VL's parameters."""

    min_pixels: int = DEFAULT_MIN_PIXELS
    """Area in pixels to which smaller frames are enlarged."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Area in pixels to which larger frames are reduced."""
    total_pixels: int = DEFAULT_TOTAL_PIXELS
    """Limit on the area of all frames together, where the frames of a patch count as one; see `frame_max_pixels`."""

    def plan(self, num_frames: int, height: int, width: int) -> View:
        depth = self.temporal_patch_size
        max_pixels = frame_max_pixels(
            num_frames,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
            total_pixels=self.total_pixels,
            depth=depth,
        )
        factor = self.patch_size * self.merge_size
        size = smart_resize(height, width, factor=factor, min_pixels=self.min_pixels, max_pixels=max_pixels)
        return self.view(num_frames, size)

    def with_bounds(self, *, min_pixels: int | None, max_pixels: int | None, total_pixels: int | None) -> "SmartFrames":
        lower, upper = request_bounds(self.min_pixels, self.max_pixels, min_pixels=min_pixels, max_pixels=max_pixels)
        return msgspec.structs.replace(
            self, min_pixels=lower, max_pixels=upper, total_pixels=total_pixels or self.total_pixels
        )


def frame_max_pixels(num_frames: int, *, min_pixels: int, max_pixels: int, total_pixels: int, depth: int) -> int:
    """Returns the largest area of each frame of a video: its share of `total_pixels`, within bounds.

    The formula is Qwen2-VL's. A share is at least 1.05 · `min_pixels`, so that frames of long videos stay legible.

    Args:
        min_pixels: Area to which smaller frames are enlarged.
        max_pixels: Area to which larger frames are reduced.
        total_pixels: Area of all frames together, where the `depth` frames of a patch count as one.
        depth: Frames per patch.
    """
    share = total_pixels * depth // num_frames
    return min(max_pixels, max(share, int(min_pixels * 1.05)))


def view_of_frames(num_frames: int, size: Size) -> View:
    """Returns frames of a size. Raises MediaError (TOO_LARGE) if they have more than `LARGEST_FRAMES_PIXELS`."""
    most = LARGEST_FRAMES_PIXELS // math.prod(size)
    if num_frames > most:
        message = f"expected at most {most} frames of this shape, got {num_frames}; "
        raise MediaError(MediaErrorCode.TOO_LARGE, message + "sample fewer frames (fps, num_frames, max_frames)")
    return View(resized=size)
