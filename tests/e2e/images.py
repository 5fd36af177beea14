"""Images for the tests, and how they are encoded."""

import base64
import io
import random

from PIL import Image


def tiles(*, seed: float = 0, width: int = 224, height: int = 224) -> Image.Image:
    """Coloured tiles, different for each seed."""
    return Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192)).resize(
        (width, height), Image.Resampling.NEAREST
    )


def encoded(image: Image.Image, file_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()


def data_url(image: Image.Image, file_format: str = "PNG") -> str:
    return f"data:image/{file_format.lower()};base64," + base64.b64encode(encoded(image, file_format)).decode()
