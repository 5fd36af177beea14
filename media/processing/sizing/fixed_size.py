"""Images of one fixed size, in CLIP's way: resized by the shorter side and cropped in the center, or stretched.

Pure arithmetic, in the formulas of transformers (image_transforms.py).
"""

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.sizing.recipe import LOW_DETAIL_MAX_PIXELS, ImageRecipe
from glimpse.media.processing.sizing.views import ImagePlan, View

MAX_ASPECT_RATIO = 200
"""Limit on elongated images, of whose resized pixels most are cut off."""


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

    def fits(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
        return shape == (self.side, self.side, 3) and grid == (1, 1)

    def low_detail(self) -> "FixedSize":
        return super().low_detail() if self.side**2 > LOW_DETAIL_MAX_PIXELS else self

    def _view(self, height: int, width: int) -> View:
        if min(height, width) < 1:
            raise _invalid_image(f"expected an image of at least 1×1 pixels, got {width}×{height}")
        if self.shortest_edge is None:
            return View(resized=(self.side, self.side))
        if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            raise _invalid_image(
                f"expected an aspect ratio of at most {MAX_ASPECT_RATIO}:1, got {width}×{height} pixels"
            )
        longer = int(self.shortest_edge * max(height, width) / min(height, width))
        resized = (longer, self.shortest_edge) if height > width else (self.shortest_edge, longer)
        top, left = (resized[0] - self.side) // 2, (resized[1] - self.side) // 2
        return View(resized=resized, size=(self.side, self.side), top=top, left=left)


def _invalid_image(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_MEDIA, message)
