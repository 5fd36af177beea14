"""What becomes of an image, as plain values: the sizes to which it is resized, what is cut off, and the tiles."""

from dataclasses import dataclass

Size = tuple[int, int]
"""(height, width) in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An image that is resized, then cropped or padded, then cut into tiles of equal size."""

    resized: Size
    """Size to which the image is resized, whatever its aspect ratio."""
    through: Size | None = None
    """Size to which it is resized before, since each resizing leaves its mark on pixels; None: none."""
    source: int | None = None
    """Index of the earlier view of whose image, after the crop or padding, this one is made; None: the image itself."""
    size: Size | None = None
    """Size after the crop or padding; None: `resized`."""
    top: int = 0
    """Row of the resized image that becomes the first row; negative for rows of padding above it."""
    left: int = 0
    """Column of the resized image that becomes the first column; negative for columns of padding before it."""
    padding: tuple[int, int, int] = (0, 0, 0)
    """RGB color of the padding."""
    rows: int = 1
    """Rows of tiles; 0 if the view is only the source of another."""
    columns: int = 1
    """Tiles in a row."""

    @property
    def whole(self) -> Size:
        """Size before the cut into tiles."""
        return self.size or self.resized

    @property
    def num_tiles(self) -> int:
        return self.rows * self.columns


def patches(size: Size, side: int) -> View:
    """Returns an image that is resized, then cut into square patches of this side."""
    height, width = size
    return View(resized=size, rows=height // side, columns=width // side)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """The pixels of one image for an encoder."""

    views: tuple[View, ...]
    """In the order of their tiles, each row by row. The tiles of all views have one size."""
    grid: tuple[int, ...]
    """See the engine's `MediaSpan`."""
    is_tiled: bool = False
    """The pixels are [tiles, height, width, 3]; if False, [height, width, 3] of a single tile."""

    @property
    def tile(self) -> Size:
        view = next(view for view in self.views if view.num_tiles)
        height, width = view.whole
        return height // view.rows, width // view.columns

    @property
    def num_tiles(self) -> int:
        return sum(view.num_tiles for view in self.views)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_tiles, *self.tile, 3) if self.is_tiled else (*self.tile, 3)
