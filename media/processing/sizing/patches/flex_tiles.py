"""Images in LFM2-VL's way: small ones nearly as they are, large ones as square tiles and an overview. Pure arithmetic.

The formulas are those of transformers (models/lfm2_vl/image_processing_lfm2_vl.py).
"""

import msgspec

from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from glimpse.media.processing.sizing.recipe import LOW_DETAIL_MAX_PIXELS, ImageRecipe
from glimpse.media.processing.sizing.smart_resize import smart_resize
from glimpse.media.processing.sizing.views import ImagePlan, Size, patches


class FlexTiles(ImageRecipe, frozen=True, kw_only=True, tag="flex_tiles"):
    """Images as patches, [patches, patch_size, patch_size, 3], since their sizes differ: those of all tiles together
    row by row, then those of the overview; or those of an image that is not cut."""

    patch_size: int = 16
    """Side of a patch in pixels."""
    merge_size: int = 2
    """Side of a token in patches."""
    tile: int = 512
    """Side of a tile in pixels: a multiple of a token's."""
    min_tiles: int = 2
    """Fewest tiles of an image that is cut; at least 2."""
    max_tiles: int = 10
    """Most tiles. 1: no image is cut."""
    min_tokens: int = 64
    """Tokens to whose area smaller images are enlarged."""
    max_tokens: int = 256
    """Tokens to whose area larger images and overviews are reduced."""
    tolerance: float = 2.0
    """Images are cut whose area is more than `max_tokens` times this."""
    has_overview: bool = True
    """Images that are cut have an overview."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image's tiles and its overview.

        The grid is (rows, columns) of tiles, patches along a tile's side, and (rows, columns) of patches of the
        overview. The first three are 0 for an image that is not cut, and the last two without an overview.
        """
        factor, area = self._factor, self._factor**2
        bounds = {"min_pixels": self.min_tokens * area, "max_pixels": self.max_tokens * area}
        whole = patches(smart_resize(height, width, factor=factor, shortest=factor, **bounds), self.patch_size)
        if self.max_tiles == 1 or not self._is_large(height, width):
            return ImagePlan(views=(whole,), grid=(0, 0, 0, whole.rows, whole.columns), is_tiled=True)
        tiles = AspectTiles(tile=self.tile, min_tiles=self.min_tiles, max_tiles=self.max_tiles).plan(height, width)
        cut = (*tiles.grid, self.tile // self.patch_size)
        views, of_overview = ((whole,), (whole.rows, whole.columns)) if self.has_overview else ((), (0, 0))
        resized = tiles.views[0].resized
        return ImagePlan(views=(patches(resized, self.patch_size), *views), grid=(*cut, *of_overview), is_tiled=True)

    def tiles(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, Size]:  # noqa: ARG002 - the grid says it
        rows, columns, side, own_rows, own_columns = grid
        num_rows, num_columns = max((side, side), (own_rows, own_columns), key=lambda size: size[0] * size[1])
        return rows * columns + (own_rows > 0), (num_rows * self.patch_size, num_columns * self.patch_size)

    def low_detail(self) -> "FlexTiles":
        most = min(self.max_tokens, LOW_DETAIL_MAX_PIXELS // self._factor**2)
        return msgspec.structs.replace(self, max_tiles=1, max_tokens=most, min_tokens=min(self.min_tokens, most))

    @property
    def _factor(self) -> int:
        """Side of a token in pixels."""
        return self.patch_size * self.merge_size

    def _is_large(self, height: int, width: int) -> bool:
        rounded = (max(self.patch_size, round(side / self._factor) * self._factor) for side in (height, width))
        own_height, own_width = rounded
        return own_height * own_width > self.max_tokens * self._factor**2 * self.tolerance
