"""Images of random pixels: none is like another, so that no cache answers for the model."""

import random

from glimpse.client.png import RGB, encode_png


def noise_png(draw: random.Random, side: int) -> bytes:
    """Returns a square RGB image as PNG."""
    rows = (draw.randbytes(3 * side) for _ in range(side))
    return encode_png(rows, width=side, height=side, colour_type=RGB)
