"""Images that hold nothing with a name here: what a photo is to one who knows only simple shapes."""

import numpy as np
from PIL import Image, ImageDraw

from models.training.drawing.draw import finish
from models.training.drawing.scene import draw_sides
from models.training.rng import SampleRng
from models.training.sample import SampleImage


def draw_clutter(rng: SampleRng) -> SampleImage:
    """Soft patches of many colours, with lines and spots across them, or none."""
    width, height = draw_sides(rng)
    noise = np.random.default_rng(rng.source.getrandbits(32))
    patches = noise.integers(0, 256, (rng.source.randint(3, 9), rng.source.randint(3, 9), 3), np.uint8)
    image = Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(rng.source.randint(0, 25)):
        _scribble(rng, pen, width, height)
    grain = noise.normal(0, rng.between(2, 25), (height, width, 3))
    return SampleImage(pixels=finish(rng, np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)))


def _scribble(rng: SampleRng, pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
    rgb = rng.source.randrange(256), rng.source.randrange(256), rng.source.randrange(256)
    points = [(rng.between(0, width), rng.between(0, height)) for _ in range(rng.source.randint(2, 5))]
    if rng.chance(0.5):
        pen.line(points, fill=rgb, width=rng.source.randint(1, 4))
    else:
        pen.polygon(points, fill=rgb)
