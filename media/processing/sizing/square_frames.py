"""Frames of a video that are stretched to squares, as in SmolVLM2 and LLaVA-OneVision. Pure arithmetic.

As in transformers (models/smolvlm/video_processing_smolvlm.py), with an intermediate size that keeps the aspect ratio,
or without (models/llava_onevision/video_processing_llava_onevision.py).
"""

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.sizing.recipe import VideoRecipe, check_sides
from glimpse.media.processing.sizing.smart_frames import LARGEST_TOTAL_PIXELS
from glimpse.media.processing.sizing.split_tiles import MAX_EDGE, scale_longest_edge
from glimpse.media.processing.sizing.views import View


class SquareFrames(VideoRecipe, frozen=True, kw_only=True, tag="square_frames"):
    """Frames of one size, whatever the video's."""

    tile: int
    """Side of a frame in pixels."""
    longest_edge: int | None
    """Length in pixels to which the longer side of a frame is resized first; None: frames are resized once."""

    def plan(self, num_frames: int, height: int, width: int) -> View:
        check_sides(height, width, of="frames")
        if num_frames * self.tile**2 > LARGEST_TOTAL_PIXELS:
            message = (
                f"expected at most {LARGEST_TOTAL_PIXELS // self.tile**2} frames, got {num_frames}; "
                "sample fewer frames (fps, num_frames, max_frames)"
            )
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        if self.longest_edge is None:
            return View(resized=(self.tile, self.tile))
        through = scale_longest_edge(height, width, min(self.longest_edge, MAX_EDGE))
        return View(resized=(self.tile, self.tile), through=through)

    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, ...]:  # noqa: ARG002 - frames have one size
        return (num_frames,)

    def fits(self, num_frames: int, height: int, width: int) -> bool:  # noqa: ARG002 - any number
        return height == width == self.tile
