"""Scenes with known content: coloured shapes on white, drawn independently of the training code."""

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

COLOURS = {
    "red": (230, 20, 20),
    "green": (0, 140, 0),
    "blue": (20, 40, 230),
    "yellow": (255, 230, 0),
    "black": (0, 0, 0),
}
Thing = tuple[str, str, tuple[float, float], float]
"""Colour, shape, centre as fractions of the sides, and diameter as a fraction of the shorter side."""


def scene(*things: Thing, width: int = 168, height: int = 168, mode: str = "RGB") -> Image.Image:
    """Draws on white, or on a transparent background in the mode RGBA."""
    ground = (255, 255, 255) if mode == "RGB" else (0, 0, 0, 0)
    image = Image.new(mode, (width * 4, height * 4), ground)
    for colour, shape, (x, y), diameter in things:
        _draw(
            ImageDraw.Draw(image),
            shape,
            COLOURS[colour],
            x * width * 4,
            y * height * 4,
            diameter * min(width, height) * 2,
        )
    return image.resize((width, height), Image.Resampling.LANCZOS)


def moving(colour: str, shape: str, centres: Sequence[tuple[float, float]], *, side: int = 112) -> list[Image.Image]:
    """The frames of a video in which one thing moves."""
    return [scene((colour, shape, centre, 0.3), width=side, height=side) for centre in centres]


def _draw(pen: ImageDraw.ImageDraw, shape: str, ink: tuple[int, int, int], x: float, y: float, radius: float) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    match shape:
        case "circle":
            pen.ellipse(box, fill=ink)
        case "square":
            pen.rectangle(box, fill=ink)
        case "triangle":
            pen.polygon(
                [(x, y - 0.87 * radius), (x - radius, y + 0.87 * radius), (x + radius, y + 0.87 * radius)], fill=ink
            )
        case "star":
            corners = [(radius if step % 2 == 0 else 0.4 * radius, math.pi * step / 5) for step in range(10)]
            pen.polygon([(x + far * math.sin(turn), y - far * math.cos(turn)) for far, turn in corners], fill=ink)
        case _:
            raise ValueError(f"expected a known shape, got {shape!r}")
