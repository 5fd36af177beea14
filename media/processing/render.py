"""Makes the pixels that a recipe plans.

Resizing is Pillow's, bilinear, bicubic or Lanczos: by the native kernel where it is available, else by Pillow.
"""

import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL.Image import Resampling

from glimpse.media.native.library import native_resizer
from glimpse.media.pixels import RgbImage, get_pixels
from glimpse.media.processing.sizing.views import ImagePlan, Size, View

PixelArray = npt.NDArray[np.uint8]


def render(image: RgbImage, plan: ImagePlan, resampling: Resampling) -> PixelArray:
    """Returns the pixels of an upright image: uint8 [tiles, height, width, 3], or [height, width, 3] without tiles."""
    pixels = np.empty((plan.num_tiles, *plan.tile, 3), np.uint8)
    images: list[RgbImage] = []
    num_filled = 0
    for view in plan.views:
        source = image if view.source is None else images[view.source]
        into = pixels[num_filled : num_filled + view.num_tiles]
        images.append(render_view(source, view, into, resampling))
        num_filled += view.num_tiles
    return pixels if plan.is_tiled else pixels[0]


def render_view(source: RgbImage, view: View, into: PixelArray, resampling: Resampling) -> PixelArray:
    """Writes the tiles of a view into `into`, uint8 [tiles, height, width, 3]. Returns the image before the cut."""
    if view.through is not None:
        source = _resized(source, view.through, resampling)
    if view.num_tiles == 1 and view.whole == view.resized and not (view.top or view.left):
        resize(source, into[0], resampling)
        return into[0]
    whole = _placed(_resized(source, view.resized, resampling), view)
    if view.num_tiles:
        _, height, width, _ = into.shape
        tiles = whole.reshape(view.rows, height, view.columns, width, 3).swapaxes(1, 2)
        into[:] = tiles.reshape(into.shape)
    return whole


def resize(image: RgbImage, into: PixelArray, resampling: Resampling = Resampling.BICUBIC) -> None:
    """Resizes an image into `into`, uint8 [height, width, 3]. Both implementations give the same pixels.

    Raises:
        ValueError: The image or the target is not 8-bit RGB.
        MemoryError: There is too little memory.
    """
    resizer = native_resizer()
    if resizer is None:
        resize_with_pillow(image, into, resampling)
    else:
        resizer.resize(get_pixels(image), into, resampling)


def resize_with_pillow(image: RgbImage, into: PixelArray, resampling: Resampling = Resampling.BICUBIC) -> None:
    """Reference implementation of `resize`."""
    height, width, _ = into.shape
    source = image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)
    into[:] = np.asarray(source.resize((width, height), resampling))


def _resized(source: RgbImage, size: Size, resampling: Resampling) -> PixelArray:
    resized = np.empty((*size, 3), np.uint8)
    resize(source, resized, resampling)
    return resized


def _placed(resized: PixelArray, view: View) -> PixelArray:
    """Returns the resized image after the crop and padding."""
    if view.whole == view.resized and not (view.top or view.left):
        return resized
    canvas = np.full((*view.whole, 3), view.padding, np.uint8)
    height, width = view.whole
    kept = resized[max(view.top, 0) : max(view.top + height, 0), max(view.left, 0) : max(view.left + width, 0)]
    top, left = max(-view.top, 0), max(-view.left, 0)
    canvas[top : top + kept.shape[0], left : left + kept.shape[1]] = kept
    return canvas
