"""Tiles of an image in InternVL's way: it is stretched to the arrangement of tiles whose aspect ratio is closest to its
own. Pure arithmetic.

The formulas are those of transformers (models/got_ocr2/image_processing_got_ocr2.py).
"""

from collections.abc import Iterator

from glimpse.media.processing.sizing.recipe import ImageRecipe, check_sides
from glimpse.media.processing.sizing.views import ImagePlan, Size, View


class AspectTiles(ImageRecipe, frozen=True, kw_only=True, tag="aspect_tiles"):
    """Square tiles, and an overview of an image that becomes several."""

    tile: int
    """Side of a tile in pixels."""
    min_tiles: int = 1
    """Fewest tiles of an image, without the overview."""
    max_tiles: int = 12
    """Most tiles of an image, without the overview; at least `min_tiles`."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image's tiles and its overview, which comes last. The grid is (rows, columns) of tiles; an image
        that is a single tile has no overview."""
        check_sides(height, width)
        rows, columns = self._best_grid(height, width)
        whole = View(resized=(rows * self.tile, columns * self.tile), rows=rows, columns=columns)
        overview = () if rows * columns == 1 else (View(resized=(self.tile, self.tile)),)
        return ImagePlan(views=(whole, *overview), grid=(rows, columns), is_tiled=True)

    def _best_grid(self, height: int, width: int) -> Size:
        """Returns rows and columns. Of those with equal ratios, more tiles are better up to twice the image's area."""
        best, least = (1, 1), float("inf")
        for rows, columns in self._grids():
            difference = abs(width / height - columns / rows)
            is_small = height * width > 0.5 * self.tile**2 * rows * columns
            if difference < least or (difference == least and is_small):
                best, least = (rows, columns), difference
        return best

    def _grids(self) -> list[Size]:
        """Returns the rows and columns of all arrangements, those of fewer tiles and then of fewer columns first."""
        return sorted(self._unsorted_grids(), key=lambda grid: (grid[0] * grid[1], grid[1]))

    def _unsorted_grids(self) -> Iterator[Size]:
        for columns in range(1, self.max_tiles + 1):
            for rows in range(1, self.max_tiles // columns + 1):
                if rows * columns >= self.min_tiles:
                    yield rows, columns


def num_tiles(rows: int, columns: int) -> int:
    """Returns the tiles of an image with this grid, its overview included."""
    return 1 if rows * columns == 1 else rows * columns + 1
