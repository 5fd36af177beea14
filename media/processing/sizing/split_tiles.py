"""Tiles of an image in Idefics3's and SmolVLM's way: square tiles in rows, and an overview. Pure arithmetic.

The formulas, with their rounding, are those of transformers (models/smolvlm/image_processing_pil_smolvlm.py). An image
is resized several times in a row, because the models were trained on such pixels.
"""

import math

from glimpse.media.processing.sizing.recipe import ImageRecipe, check_sides
from glimpse.media.processing.sizing.views import ImagePlan, Size, View

MAX_EDGE = 4096
"""Limit in pixels on the longer side of a resized image, whatever the checkpoint asks for."""


class SplitTiles(ImageRecipe, frozen=True, kw_only=True, tag="split_tiles"):
    """Images whose longer side is resized to one length, and which are then stretched to whole tiles."""

    tile: int
    """Side of a tile in pixels."""
    longest_edge: int
    """Length in pixels to which the longer side of an image is resized first."""
    split: bool = True
    """Cuts images into tiles. False: every image becomes its overview alone."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image's tiles and its overview, which comes last.

        The grid is (rows, columns) of tiles; (0, 0) for an image that is its overview alone.
        """
        check_sides(height, width)
        scaled = _bounded(*scale_longest_edge(height, width, self.longest_edge))
        rows, columns = self._num_tiles(*scaled) if self.split else (1, 1)
        overview = (self.tile, self.tile)
        if rows * columns == 1:
            return ImagePlan(views=(View(resized=overview, through=scaled),), grid=(0, 0), is_tiled=True)
        whole = View(resized=(rows * self.tile, columns * self.tile), through=scaled, rows=rows, columns=columns)
        return ImagePlan(views=(whole, View(resized=overview, source=0)), grid=(rows, columns), is_tiled=True)

    def _num_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Returns rows and columns: those of the longer side cover it, the others follow from the aspect ratio."""
        aspect = width / height
        if width >= height:
            columns = _num_covering(width, self.tile)
            return _num_covering(int(columns * self.tile / aspect), self.tile), columns
        rows = _num_covering(height, self.tile)
        return rows, _num_covering(int(rows * self.tile * aspect), self.tile)


def scale_longest_edge(height: int, width: int, edge: int) -> Size:
    """Returns the size with a longer side of `edge`; the shorter side is even, or 1."""
    aspect = width / height
    if width >= height:
        return _even(int(edge / aspect)), edge
    return edge, _even(int(edge * aspect))


def _bounded(height: int, width: int) -> Size:
    """Returns the size, reduced if its longer side exceeds `MAX_EDGE`; then the shorter side may be odd."""
    if max(height, width) <= MAX_EDGE:
        return height, width
    aspect = width / height
    return (max(int(MAX_EDGE / aspect), 1), MAX_EDGE) if width >= height else (MAX_EDGE, max(int(MAX_EDGE * aspect), 1))


def _even(side: int) -> int:
    return max(side + side % 2, 1)


def _num_covering(side: int, tile: int) -> int:
    # At least one: for some elongated images the reference rounds to none, and fails.
    return max(math.ceil(side / tile), 1)
