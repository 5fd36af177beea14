"""Bilinear, bicubic and Lanczos resizing like Pillow's, by the native kernel where it is available, else by Pillow."""

import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL.Image import Resampling

from glimpse.media.native.library import native_resizer
from glimpse.media.pixels import RgbImage, get_pixels


def resize(image: RgbImage, into: npt.NDArray[np.uint8], resampling: Resampling = Resampling.BICUBIC) -> None:
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


def resize_with_pillow(
    image: RgbImage, into: npt.NDArray[np.uint8], resampling: Resampling = Resampling.BICUBIC
) -> None:
    """Reference implementation of `resize`."""
    height, width, _ = into.shape
    source = image if isinstance(image, PIL.Image.Image) else PIL.Image.fromarray(image)
    into[:] = np.asarray(source.resize((width, height), resampling))
