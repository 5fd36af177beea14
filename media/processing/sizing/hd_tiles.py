"""Tiles of an image in Phi-3-vision's way: the image is resized to a whole number of tiles along its longer side, and
padded along the shorter one. Pure arithmetic.

The formulas, with their rounding, are those of `HD_transform` in the published image processor (from
InternLM-XComposer2-4KHD, arXiv 2404.06512, section 3.2).
"""

import math

from glimpse.media.processing.sizing.recipe import ImageRecipe, check_sides, too_elongated
from glimpse.media.processing.sizing.views import ImagePlan, View

MAX_TILES = 64
"""Limit of Glimpse on the tiles of an image, whatever the checkpoint asks for."""

_WHITE = (255, 255, 255)


class HdTiles(ImageRecipe, frozen=True, kw_only=True, tag="hd_tiles"):
    """Square tiles. The encoder makes the overview from them, because the reference resizes it after the pixels are
    normalized."""

    tile: int
    """Side of a tile in pixels."""
    max_tiles: int
    """Most tiles of an image."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image's tiles, as many as fit its aspect ratio. The grid is (rows, columns) of tiles."""
        check_sides(height, width)
        shorter, longer = sorted((height, width))
        ratio = longer / shorter
        num_along = self._num_along(ratio)
        along = num_along * self.tile
        across = int(along / ratio)
        if across < 1:
            raise too_elongated(height, width)
        num_across = math.ceil(across / self.tile)
        padded = num_across * self.tile
        margin = (padded - across) // 2
        if width < height:
            view = View(
                resized=(along, across),
                size=(along, padded),
                left=-margin,
                padding=_WHITE,
                rows=num_along,
                columns=num_across,
            )
        else:
            view = View(
                resized=(across, along),
                size=(padded, along),
                top=-margin,
                padding=_WHITE,
                rows=num_across,
                columns=num_along,
            )
        return ImagePlan(views=(view,), grid=(view.rows, view.columns), is_tiled=True)

    def _num_along(self, ratio: float) -> int:
        """Returns the most tiles along the longer side with which all tiles are not too many."""
        number = 1
        while (number + 1) * math.ceil((number + 1) / ratio) <= self.max_tiles:
            number += 1
        return number
