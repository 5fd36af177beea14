"""Pages in DeepSeek-OCR-2's way: an overview, padded to a square, and square tiles of large pages. Pure arithmetic.

The formulas, with their rounding, are those of transformers
(models/deepseek_ocr2/image_processing_deepseek_ocr2.py).
"""

from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from glimpse.media.processing.sizing.recipe import ImageRecipe, check_sides, too_elongated
from glimpse.media.processing.sizing.views import ImagePlan, Size, View


class PageTiles(ImageRecipe, frozen=True, kw_only=True, tag="page_tiles"):
    """Images as patches, [patches, patch_size, patch_size, 3], since tiles are smaller than the overview: those of all
    tiles together row by row, then those of the overview."""

    patch_size: int = 16
    """Side of a patch in pixels."""
    side: int = 1024
    """Side of the overview in pixels: a multiple of a patch's."""
    tile: int = 768
    """Side of a tile in pixels, likewise. Images of at most this width and height are not cut."""
    min_tiles: int = 2
    """Fewest tiles of an image that is cut."""
    max_tiles: int = 6
    """Most tiles of an image that is cut; at least `min_tiles`."""
    padding: tuple[int, int, int] = (127, 127, 127)
    """RGB color around the image in the overview."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image's tiles and its overview. The grid is (rows, columns) of tiles; (0, 0) for an image that is
        not cut."""
        check_sides(height, width)
        overview = self._overview(height, width)
        if max(height, width) <= self.tile:
            return ImagePlan(views=(overview,), grid=(0, 0), is_tiled=True)
        tiles = AspectTiles(tile=self.tile, min_tiles=self.min_tiles, max_tiles=self.max_tiles).plan(height, width)
        rows, columns = (side // self.patch_size for side in tiles.views[0].resized)
        cut = View(resized=tiles.views[0].resized, rows=rows, columns=columns)
        return ImagePlan(views=(cut, overview), grid=tiles.grid, is_tiled=True)

    def tiles(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, Size]:  # noqa: ARG002 - the grid says it
        rows, columns = grid
        return rows * columns + 1, (self.side, self.side)

    def _overview(self, height: int, width: int) -> View:
        """Returns the whole image in the middle of a square."""
        scale, side = self.side / max(height, width), self.side // self.patch_size
        resized = (round(height * scale), round(width * scale))
        if not all(resized):
            raise too_elongated(height, width)
        return View(
            resized=resized,
            size=(self.side, self.side),
            top=-((self.side - resized[0]) // 2),
            left=-((self.side - resized[1]) // 2),
            padding=self.padding,
            rows=side,
            columns=side,
        )
