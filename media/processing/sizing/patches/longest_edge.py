"""Images of any aspect ratio in Pixtral's way: reduced until the longer side fits, then stretched to whole tokens.

Pure arithmetic, in the formulas of transformers (models/pixtral/image_processing_pixtral.py).
"""

import math

import msgspec

from glimpse.media.processing.sizing.recipe import LOW_DETAIL_MAX_PIXELS, ImageRecipe, check_aspect_ratio
from glimpse.media.processing.sizing.views import ImagePlan, View


class LongestEdge(ImageRecipe, frozen=True, kw_only=True, tag="longest_edge"):
    """Images with a bound on the longer side. Small ones are enlarged to whole tokens alone."""

    longest_edge: int
    """In pixels."""
    patch_size: int
    """Side of a patch in pixels."""
    merge_size: int
    """Side of a token in patches."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns the resized image; its grid is (1, rows, columns) of patches."""
        check_aspect_ratio(height, width)
        ratio = max(height / self.longest_edge, width / self.longest_edge)
        if ratio > 1:
            height, width = (max(1, math.floor(side / ratio)) for side in (height, width))
        token = self.patch_size * self.merge_size
        rows, columns = (-(-side // token) * self.merge_size for side in (height, width))
        resized = (rows * self.patch_size, columns * self.patch_size)
        return ImagePlan(views=(View(resized=resized),), grid=(1, rows, columns))

    def key_parameters(self, grid: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - it follows from the shape
        return (self.patch_size, self.merge_size)

    def low_detail(self) -> "LongestEdge":
        side = math.isqrt(LOW_DETAIL_MAX_PIXELS)
        token = self.patch_size * self.merge_size
        return msgspec.structs.replace(self, longest_edge=min(self.longest_edge, max(side // token, 1) * token))
