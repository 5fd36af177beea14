"""Frames of a video that each fill a budget of tokens, as Gemma 4 reads them. Pure arithmetic.

As in transformers (models/gemma4/video_processing_gemma4.py).
"""

import msgspec

from glimpse.media.errors import MediaOptionError
from glimpse.media.processing.sizing.patches.patch_budget import PatchBudget
from glimpse.media.processing.sizing.recipe import VideoRecipe
from glimpse.media.processing.sizing.smart_frames import LARGEST_FRAMES_PIXELS, view_of_frames
from glimpse.media.processing.sizing.views import View


class BudgetFrames(VideoRecipe, frozen=True, kw_only=True, tag="budget_frames"):
    """Frames that are enlarged or reduced as images of one budget."""

    images: PatchBudget
    """How each frame is resized."""

    def plan(self, num_frames: int, height: int, width: int) -> View:
        (view,) = self.images.plan(height, width).views
        return view_of_frames(num_frames, view.whole)

    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, ...]:
        """Returns the number of frames, and rows and columns of patches in a frame."""
        return (num_frames, height // self.images.patch_size, width // self.images.patch_size)

    def fits(self, num_frames: int, height: int, width: int) -> bool:
        side = self.images.factor
        is_whole = height % side == width % side == 0
        return is_whole and num_frames * height * width <= LARGEST_FRAMES_PIXELS

    @property
    def key_parameters(self) -> tuple[int, ...]:
        return self.images.key_parameters(())

    def with_bounds(
        self, *, min_pixels: int | None, max_pixels: int | None, total_pixels: int | None
    ) -> "BudgetFrames":
        """Returns a copy with the largest budget for a frame whose area is at most `max_pixels`; see `PatchBudget`."""
        if total_pixels is not None:
            raise MediaOptionError(
                "total_pixels", f"expected none, since each frame fills a budget (max_pixels), got {total_pixels}"
            )
        images = self.images.with_bounds(min_pixels=min_pixels, max_pixels=max_pixels)
        return msgspec.structs.replace(self, images=images)
