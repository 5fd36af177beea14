"""Target sizes of a video's frames, in Qwen3-VL's formulas, which bound the volume of all frames. Pure arithmetic."""

import math

import msgspec

from glimpse.media.processing.sizing.recipe import check_aspect_ratio, check_pixel_bounds, check_sides
from glimpse.media.processing.sizing.smart_frames import PatchedFrames
from glimpse.media.processing.sizing.views import Size, View


class VolumeFrames(PatchedFrames, frozen=True, kw_only=True, tag="volume_frames"):
    """Frames of any aspect ratio, by default with the parameters of Qwen3-VL's video processor."""

    patch_size: int = 16
    min_volume: int = 128 * 32 * 32
    """Pixels of all frames together to which smaller videos are enlarged."""
    max_volume: int = 768 * 32 * 32
    """Pixels of all frames together to which larger videos are reduced."""
    max_frame_tokens: int | None = None
    """Limit on the tokens of a frame, as qwen-vl-utils sets it (`cap_pixels_per_frame` of the processor)."""
    min_pixels: int | None = None
    """A request's bound on the area of a frame, instead of `min_volume`."""
    max_pixels: int | None = None
    """A request's bound on the area of a frame, besides `max_volume`."""

    def plan(self, num_frames: int, height: int, width: int) -> View:
        num_frames = max(num_frames, self.temporal_patch_size)  # a single frame is repeated
        lower, upper = self._volumes(num_frames)
        size = volume_resize(
            num_frames,
            height,
            width,
            depth=self.temporal_patch_size,
            factor=self.patch_size * self.merge_size,
            min_volume=lower,
            max_volume=upper,
        )
        return self.view(num_frames, size)

    def with_bounds(
        self, *, min_pixels: int | None, max_pixels: int | None, total_pixels: int | None
    ) -> "VolumeFrames":
        check_pixel_bounds(min_pixels, max_pixels)
        volume = self.max_volume if total_pixels is None else total_pixels * self.temporal_patch_size
        return msgspec.structs.replace(self, min_pixels=min_pixels, max_pixels=max_pixels, max_volume=volume)

    def _volumes(self, num_frames: int) -> tuple[int, int]:
        """Returns the bounds for this many frames. The upper one yields to a lower one, except to the default."""
        upper = self._max_volume(num_frames)
        if self.min_pixels is None:
            return min(self.min_volume, upper), upper
        lower = self.min_pixels * num_frames
        return lower, max(lower, upper)

    def _max_volume(self, num_frames: int) -> int:
        if self.max_pixels is not None:
            return min(self.max_volume, self.max_pixels * num_frames)
        if self.max_frame_tokens is None:
            return self.max_volume
        area = min(self.max_frame_tokens * (self.patch_size * self.merge_size) ** 2, self.max_volume // num_frames)
        return max(area, int(self.min_volume * 1.05)) * num_frames


def volume_resize(
    num_frames: int, height: int, width: int, *, depth: int, factor: int, min_volume: int, max_volume: int
) -> Size:
    """Returns the size of frames whose sides are multiples of `factor` and whose volume is within bounds.

    The formula, including its rounding, is Qwen3-VL's (`smart_resize` in the video processor of transformers). A side
    is never less than `factor`, even if the volume is then out of bounds.

    Args:
        num_frames: Number of frames, at least `depth`.
        height: Height of a frame, in pixels.
        width: Width of a frame, in pixels.
        depth: Frames per patch.
        factor: Side of a token in pixels.
        min_volume: Pixels of all frames to which smaller videos are enlarged.
        max_volume: Pixels of all frames to which larger videos are reduced.

    Raises:
        MediaError: INVALID_MEDIA if a side is 0 or more than 200 times the other.
    """
    check_sides(height, width, of="frames")
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_aspect_ratio(height, width)
    rounded = (round(height / factor) * factor, round(width / factor) * factor)
    volume = round(num_frames / depth) * depth * rounded[0] * rounded[1]
    if volume > max_volume:
        shrink = math.sqrt(num_frames * height * width / max_volume)
        height, width = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
        return height, width
    if volume < min_volume:
        grow = math.sqrt(min_volume / (num_frames * height * width))
        height, width = (math.ceil(side * grow / factor) * factor for side in (height, width))
        return height, width
    return rounded
