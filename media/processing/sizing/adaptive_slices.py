"""Slices of an image in MiniCPM-V's way: an overview, and for large images slices of one size. Their area is nearly
constant, their aspect ratio follows the image's. Pure arithmetic.

The formulas, with their rounding, are those of the published image processor (arXiv 2408.01800), which transformers has
for MiniCPM-V 4.6 (models/minicpmv4_6/image_processing_pil_minicpmv4_6.py).
"""

import math

from glimpse.media.processing.sizing.recipe import ImageRecipe, check_aspect_ratio
from glimpse.media.processing.sizing.views import ImagePlan, Size, patches


class AdaptiveSlices(ImageRecipe, frozen=True, kw_only=True, tag="adaptive_slices"):
    """Images as an overview and slices. Since their sizes differ, they come as patches, [patches, patch_size,
    patch_size, 3]: those of the overview row by row, then those of all slices together row by row."""

    scale: int = 448
    """Side in pixels of a square with the area of a slice."""
    patch_size: int = 14
    """Side of a patch in pixels."""
    merge_size: int = 1
    """Side in patches of a square to whose multiples sizes are rounded, as the encoder merges its patches."""
    max_slices: int = 9
    """Most slices of an image, without the overview. 1: every image is its overview alone."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image's overview and its slices.

        The grid is (rows, columns) of patches of the overview, (rows, columns) of slices, and (rows, columns) of
        patches of a slice; the last four are 0 for an image that is its overview alone.
        """
        check_aspect_ratio(height, width)
        slices = self._slices(height, width)
        if slices is None:
            overview = patches(self._scaled(height, width), self.patch_size)
            return ImagePlan(views=(overview,), grid=(overview.rows, overview.columns, 0, 0, 0, 0), is_tiled=True)
        is_large = height * width > self.scale**2
        overview = patches(self._scaled(height, width) if is_large else self._rounded(height, width), self.patch_size)
        rows, columns = slices
        own_height, own_width = self._scaled(_nearest(height, rows) / rows, _nearest(width, columns) / columns)
        whole = patches((own_height * rows, own_width * columns), self.patch_size)
        grid = (overview.rows, overview.columns, rows, columns, whole.rows // rows, whole.columns // columns)
        return ImagePlan(views=(overview, whole), grid=grid, is_tiled=True)

    def tiles(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, Size]:  # noqa: ARG002 - the grid says it
        own_rows, own_columns, rows, columns, slice_rows, slice_columns = grid
        num_rows, num_columns = max(
            (own_rows, own_columns), (slice_rows, slice_columns), key=lambda size: size[0] * size[1]
        )
        return 1 + rows * columns, (num_rows * self.patch_size, num_columns * self.patch_size)

    def _slices(self, height: int, width: int) -> Size | None:
        """Returns rows and columns of slices, whose aspect ratio is closest to the image's; None for no slices.

        Of equally close ones, those of fewer slices and then of fewer columns are better.
        """
        wanted = min(math.ceil(width * height / self.scale**2), self.max_slices)
        if wanted <= 1:
            return None
        ratio = math.log(width / height)
        counts = [count for count in (wanted - 1, wanted, wanted + 1) if 1 < count <= self.max_slices]
        grids = [
            (count // columns, columns) for count in counts for columns in range(1, count + 1) if count % columns == 0
        ]
        return min(grids, key=lambda grid: abs(ratio - math.log(grid[1] / grid[0])))

    def _scaled(self, height: float, width: float) -> Size:
        """Returns the size in whole squares of about `scale`² pixels with this aspect ratio."""
        ratio = width / height
        new_height = int(self.scale / math.sqrt(ratio))
        return self._rounded(new_height, int(new_height * ratio))

    def _rounded(self, height: int, width: int) -> Size:
        side = self.patch_size * self.merge_size
        return _nearest(height, side), _nearest(width, side)


def _nearest(length: int, divisor: int) -> int:
    """Returns the positive multiple of `divisor` that is nearest to `length`."""
    return max(round(length / divisor) * divisor, divisor)
