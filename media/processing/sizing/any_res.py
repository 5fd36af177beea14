"""Tiles of an image in LLaVA-OneVision's way: the image, padded to the best of some resolutions, is cut into square
tiles, and an overview comes before them. Images of a prompt with several are padded to squares instead, and not cut,
unless the model was trained on the tiles of several.

Pure arithmetic. The formulas, with their rounding, are those of transformers (image_processing_utils.py and
models/llava_onevision/modeling_llava_onevision.py).
"""

import math
from collections.abc import Sequence

import msgspec

from glimpse.media.processing.sizing.recipe import ImageRecipe, check_sides, too_elongated
from glimpse.media.processing.sizing.views import ImagePlan, Size, View

MAX_SQUARE = 8192
"""Largest side in pixels of a square that is made."""


class AnyRes(ImageRecipe, frozen=True, kw_only=True, tag="any_res"):
    """An overview, which is the image stretched to a tile, and tiles of the image; or a single tile."""

    tile: int
    """Side of a tile in pixels."""
    tile_patches: int
    """Patches along each side of a tile."""
    resolutions: tuple[Size, ...]
    """Sizes of a whole number of tiles to choose from. At least one."""
    padding: tuple[int, int, int] = (0, 0, 0)
    """RGB color around an image that is padded to a square."""
    tiles_several: bool = False
    """Images of a prompt with several are cut too."""
    is_alone: bool = True
    """The prompt has no other image, or it has no influence."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns the overview and the tiles. Their grid is rows of tiles, tiles in a row, and rows and columns of
        patches that remain without the padding; all are 0 for a single tile."""
        check_sides(height, width)
        if not self.is_alone:
            return ImagePlan(views=self._square(height, width), grid=(0, 0, 0, 0), is_tiled=True)
        padded = best_resolution(height, width, self.resolutions)
        if padded is None:
            raise too_elongated(height, width)
        rows, columns = padded[0] // self.tile, padded[1] // self.tile
        patches = _without_padding(height, width, rows * self.tile_patches, columns * self.tile_patches)
        resized = _fitted(height, width, padded)
        tiles = View(
            resized=resized,
            size=padded,
            top=-((padded[0] - resized[0]) // 2),
            left=-((padded[1] - resized[1]) // 2),
            rows=rows,
            columns=columns,
        )
        overview = View(resized=(self.tile, self.tile))
        return ImagePlan(views=(overview, tiles), grid=(rows, columns, *patches), is_tiled=True)

    def among_others(self) -> "AnyRes":
        return self if self.tiles_several else msgspec.structs.replace(self, is_alone=False)

    def _square(self, height: int, width: int) -> tuple[View, ...]:
        """Returns the views of an image that is padded to a square, and resized to a tile."""
        side, tile = max(height, width), self.tile
        if height == width:
            return (View(resized=(tile, tile)),)
        top, left = -((side - height) // 2), -((side - width) // 2)
        # Resizing goes row by row first, so a wide image may be resized to the width before it is padded: the pixels
        # are the same, and no large square is made. A very tall one is resized to the height first, which rounds
        # differently.
        if width > height:
            first = View(resized=(height, tile), size=(side, tile), top=top, padding=self.padding, rows=0)
        elif height > MAX_SQUARE:
            first = View(resized=(tile, width), size=(tile, side), left=left, padding=self.padding, rows=0)
        else:
            first = View(resized=(height, width), size=(side, side), left=left, padding=self.padding, rows=0)
        return (first, View(resized=(tile, tile), source=0))


def best_resolution(height: int, width: int, resolutions: Sequence[Size]) -> Size | None:
    """Returns the resolution that keeps most of an image's pixels and, among equal ones, wastes the least area; None if
    none keeps any."""
    best, best_effective, least_wasted = None, 0, 0
    for candidate in resolutions:
        scale = min(candidate[1] / width, candidate[0] / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        wasted = candidate[0] * candidate[1] - effective
        if effective > best_effective or (effective == best_effective and wasted < least_wasted):
            best, best_effective, least_wasted = candidate, effective, wasted
    return best


def _fitted(height: int, width: int, target: Size) -> Size:
    """Returns the largest size of the image's aspect ratio within the target."""
    scale_y, scale_x = target[0] / height, target[1] / width
    if scale_x < scale_y:
        return min(math.ceil(height * scale_x), target[0]), target[1]
    return target[0], min(math.ceil(width * scale_y), target[1])


def _without_padding(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Returns how many of the rows and columns of patches are not padding. As much is cut off at both sides."""
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        return rows - (rows - kept) // 2 * 2, columns
    kept = int(round(width * (rows / height), 7))
    return rows, columns - (columns - kept) // 2 * 2
