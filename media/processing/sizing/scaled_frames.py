"""Frames of a video with nearly constant area in the video's aspect ratio, as MiniCPM-V reads them. Pure arithmetic.

Each frame is what an image without slices is (`AdaptiveSlices` with one slice at most). MiniCPM-V 4.5 encodes
neighboring frames together and knows their times, as in the script of its published model card.
"""

from collections.abc import Sequence

from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.recipe import VideoRecipe
from glimpse.media.processing.sizing.smart_frames import LARGEST_FRAMES_PIXELS, view_of_frames
from glimpse.media.processing.sizing.views import View

TIME_UNIT = 0.1
"""Seconds between two temporal ids."""


class ScaledFrames(VideoRecipe, frozen=True, kw_only=True, tag="scaled_frames"):
    """Frames in whole patches."""

    scale: int = 448
    """Side in pixels of a square with the area of a frame."""
    patch_size: int = 14
    """Side of a patch in pixels."""
    merge_size: int = 1
    """See `AdaptiveSlices`."""
    max_packs: int = 180
    """Longer videos are packed: as many neighboring frames together as leave this number of packs."""
    max_packed: int = 1
    """Most frames in a pack. 1: frames are encoded one by one, without times."""

    def plan(self, num_frames: int, height: int, width: int) -> View:
        sizes = {"scale": self.scale, "patch_size": self.patch_size, "merge_size": self.merge_size}
        (overview,) = AdaptiveSlices(**sizes, max_slices=1).plan(height, width).views
        return view_of_frames(num_frames, overview.whole)

    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, ...]:
        """Returns the number of frames, and rows and columns of patches in a frame."""
        return (num_frames, height // self.patch_size, width // self.patch_size)

    def times(self, frame_seconds: Sequence[float]) -> tuple[int, ...]:
        """Returns the number of frames in a pack, and each frame's temporal id; () if the encoder reads no times."""
        if self.max_packed == 1 or not frame_seconds:
            return ()
        packed = min(-(-len(frame_seconds) // self.max_packs), self.max_packed)
        return (packed, *map(temporal_id, frame_seconds))

    def fits(self, num_frames: int, height: int, width: int) -> bool:
        side = self.patch_size * self.merge_size
        is_whole = height % side == width % side == 0
        return is_whole and num_frames * height * width <= LARGEST_FRAMES_PIXELS


def temporal_id(seconds: float) -> int:
    """Returns a time in units of `TIME_UNIT`, rounded. Some results are one less, since the published script multiplies
    and divides by the unit in float64 and then rounds down."""
    return int(round(seconds / TIME_UNIT) * TIME_UNIT / TIME_UNIT)
