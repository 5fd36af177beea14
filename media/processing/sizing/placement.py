"""Where the pixels that a model sees of an image are in the image as it was sent. Pure arithmetic."""

from dataclasses import dataclass

from glimpse.media.processing.sizing.views import ImagePlan, Size, View

Point = tuple[float, float]
"""(x, y), from the left and upper edges."""
Box = tuple[Point, Point]
"""The upper left and the lower right corner."""

SIDEWAYS = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap width and height."""
_FROM_RIGHT = frozenset({2, 3, 7, 8})
"""EXIF orientations of files whose columns are in reverse order."""
_FROM_BOTTOM = frozenset({3, 4, 6, 7})
"""EXIF orientations of files whose rows are in reverse order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """An image file before anything happens to it."""

    width: int
    """In pixels, as the file stores them."""
    height: int
    orientation: int = 1
    """EXIF's, 1 to 8; 1 is upright."""

    @property
    def upright(self) -> Size:
        """Height and width of the upright image."""
        return (self.width, self.height) if self.orientation in SIDEWAYS else (self.height, self.width)

    def from_upright(self, x: float, y: float) -> Point:
        """Returns the place in the file of a place in the upright image, both in pixels."""
        if self.orientation in SIDEWAYS:
            x, y = y, x
        return (
            self.width - x if self.orientation in _FROM_RIGHT else x,
            self.height - y if self.orientation in _FROM_BOTTOM else y,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlacement:
    """What became of an image file."""

    source: ImageSource
    plan: ImagePlan
    """What became of the upright image."""

    @property
    def shown(self) -> Size:
        """Height and width of the largest view that the model sees, all tiles together."""
        return self._largest.whole

    @property
    def unpadded(self) -> "ImagePlacement":
        """What became of the file if the model sees the upright image as it is."""
        return ImagePlacement(source=self.source, plan=ImagePlan(views=(View(resized=self.source.upright),), grid=()))

    @property
    def seen(self) -> Box:
        """What that view has of the image, in pixels of the file."""
        height, width = self.shown
        return self.box_to_source(((0, 0), (width, height)))

    def box_to_source(self, box: Box) -> Box:
        """Returns the box in the file of a box in that view."""
        (x1, y1), (x2, y2) = self.to_source(*box[0]), self.to_source(*box[1])
        return (min(x1, x2), min(y1, y2)), (max(x1, x2), max(y1, y2))

    def to_source(self, x: float, y: float) -> Point:
        """Returns the place in the file of a place in that view, both in pixels; of padding, the nearest place."""
        view: View | None = self._largest
        while view is not None:
            below = None if view.source is None else self.plan.views[view.source]
            height, width = self.source.upright if below is None else below.whole
            x, y = (x + view.left) * width / view.resized[1], (y + view.top) * height / view.resized[0]
            view = below
        height, width = self.source.upright
        return self.source.from_upright(min(max(x, 0.0), width), min(max(y, 0.0), height))

    @property
    def _largest(self) -> View:
        return max((view for view in self.plan.views if view.num_tiles), key=lambda view: view.whole[0] * view.whole[1])
