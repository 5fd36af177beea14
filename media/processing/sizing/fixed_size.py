"""Images of one fixed size, in CLIP's way: resized by the shorter side and cropped in the center, or stretched.

Pure arithmetic, in the formulas of transformers (image_transforms.py).
"""

from glimpse.media.processing.sizing.recipe import LOW_DETAIL_MAX_PIXELS, ImageRecipe, check_aspect_ratio, check_sides
from glimpse.media.processing.sizing.views import ImagePlan, View


class FixedSize(ImageRecipe, frozen=True, kw_only=True, tag="fixed_size"):
    """Images of one size."""

    side: int
    """Height and width of the result in pixels."""
    shortest_edge: int | None = None
    """Length to which the shorter side is resized before the center is cut out, at least `side`. None: images are
    stretched to the result's size instead."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns a single tile; its grid is (1, 1)."""
        return ImagePlan(views=(self._view(height, width),), grid=(1, 1))

    def low_detail(self) -> "FixedSize":
        return super().low_detail() if self.side**2 > LOW_DETAIL_MAX_PIXELS else self

    def _view(self, height: int, width: int) -> View:
        check_sides(height, width)
        if self.shortest_edge is None:
            return View(resized=(self.side, self.side))
        check_aspect_ratio(height, width)
        longer = int(self.shortest_edge * max(height, width) / min(height, width))
        resized = (longer, self.shortest_edge) if height > width else (self.shortest_edge, longer)
        top, left = (resized[0] - self.side) // 2, (resized[1] - self.side) // 2
        return View(resized=resized, size=(self.side, self.side), top=top, left=left)
