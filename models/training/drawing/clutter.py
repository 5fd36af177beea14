"""Pictures that hold nothing with a name here: what a photo is to one who knows only simple shapes."""

import numpy as np
from PIL import Image, ImageDraw

from models.training.drawing.draw import finish
from models.training.drawing.scene import draw_sides
from models.training.rng import Luck
from models.training.sample import Picture


def draw_clutter(luck: Luck) -> Picture:
    """Soft patches of many colours, with lines and spots across them, or none."""
    width, height = draw_sides(luck)
    noise = np.random.default_rng(luck.rng.getrandbits(32))
    patches = noise.integers(0, 256, (luck.rng.randint(3, 9), luck.rng.randint(3, 9), 3), np.uint8)
    image = Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(luck.rng.randint(0, 25)):
        _scribble(luck, pen, width, height)
    grain = noise.normal(0, luck.between(2, 25), (height, width, 3))
    return Picture(pixels=finish(luck, np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8)))


def _scribble(luck: Luck, pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
    rgb = luck.rng.randrange(256), luck.rng.randrange(256), luck.rng.randrange(256)
    points = [(luck.between(0, width), luck.between(0, height)) for _ in range(luck.rng.randint(2, 5))]
    if luck.chance(0.5):
        pen.line(points, fill=rgb, width=luck.rng.randint(1, 4))
    else:
        pen.polygon(points, fill=rgb)
