"""Pictures in another size by Pillow's bicubic filter: its compiled twin computes it, or Pillow where there is none."""

import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL.Image import Resampling

from glimpse.media.native.library import native_resizer
from glimpse.media.pixels import RgbImage, pixels_of


def resize(picture: RgbImage, into: npt.NDArray[np.uint8]) -> None:
    """Fills `into`, uint8 [height, width, 3], with a picture; the two have the same pixels, whoever computes them.

    Raises:
        ValueError: they are not of 8-bit RGB.
        MemoryError: there is too little.
    """
    resizer = native_resizer()
    if resizer is None:
        resize_by_pillow(picture, into)
    else:
        resizer.resize(pixels_of(picture), into)


def resize_by_pillow(picture: RgbImage, into: npt.NDArray[np.uint8]) -> None:
    """As `resize`."""
    height, width, _ = into.shape
    image = picture if isinstance(picture, PIL.Image.Image) else PIL.Image.fromarray(picture)
    into[:] = np.asarray(image.resize((width, height), Resampling.BICUBIC))
