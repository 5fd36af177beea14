"""A picture file's bytes → a Pillow image, its size checked before a pixel is allocated. Knows no colours."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO

import PIL.Image

from glimpse.media.containers.sniff import sniff_image
from glimpse.media.errors import MediaError, MediaErrorCode

# Both hold for the whole process, which is where Pillow and `warnings` keep them. Pillow's own bound on dimensions only
# warns where ours refuses; and whatever else it has to say of a stranger's file is no business of the server's log.
PIL.Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def open_image(data: bytes, *, max_pixels: int) -> PIL.Image.Image:
    """Reads a picture's header; `load_pixels` does the rest. Of an animation the first frame counts.

    Raises:
        MediaError: UNSUPPORTED_FORMAT, INVALID_MEDIA, or TOO_LARGE for more than `max_pixels`.
    """
    image_format = sniff_image(data)
    with _report_decode_errors(image_format):
        # Only this decoder sees the bytes, so a file cannot choose a more obscure one.
        image = PIL.Image.open(BytesIO(data), formats=[image_format])
    if image.width * image.height > max_pixels:
        message = f"the picture is {image.width}×{image.height} pixels; at most {max_pixels} pixels are decoded"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    return image


def load_pixels(image: PIL.Image.Image) -> None:
    """Decodes an image that was only opened; does nothing to one that has its pixels.

    Raises:
        MediaError: INVALID_MEDIA if the file is damaged.
    """
    with _report_decode_errors(image.format or "picture"):
        image.load()


@contextmanager
def _report_decode_errors(name: str) -> Generator[None]:
    # Pillow's decoders raise whatever they trip over: OSError, SyntaxError, ValueError, struct.error, IndexError, ….
    try:
        yield
    except Exception as error:
        message = f"the {name} is damaged or cut short"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message) from error
