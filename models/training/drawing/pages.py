"""Images full of letters or of shapes, that nobody asks about: dense training data for the vision encoder."""

from collections.abc import Iterator
from string import ascii_letters, digits

from models.training.drawing.draw import Pixels, draw_ground, finish, paste, stamp
from models.training.drawing.letters import SMALLEST_PIXELS, draw_ink
from models.training.drawing.palette import COLOURS, Rgb, brightness, distance, draw_rgb
from models.training.drawing.scene import SMALLEST_PIXELS as SMALLEST_SHAPE
from models.training.drawing.scene import Background, Thing, draw_background
from models.training.drawing.shapes import SHAPES, outline
from models.training.rng import SampleRng
from models.training.sample import SampleImage, Seen

CLEAR_BRIGHTNESS = 50
"""The least difference between a letter and its background."""
CLEAR_DISTANCE = 140
"""Likewise of a shape, by `palette.distance`."""


def draw_page(rng: SampleRng) -> SampleImage:
    """A page of either kind."""
    width, height = (28 * rng.source.randint(3, 7) for _ in range(2))
    background = rng.until(lambda: draw_background(rng, []))
    canvas = draw_ground(rng, background, width, height)
    draw = _letters if rng.chance(0.7) else _shapes
    objects = tuple(draw(rng, canvas, background))
    return SampleImage(pixels=finish(rng, canvas), objects=objects)


def _letters(rng: SampleRng, canvas: Pixels, background: Background) -> Iterator[Seen]:
    """Lines of groups of characters, each in its own face, size and colour."""
    height, width = canvas.shape[:2]
    top = rng.between(1, 12)
    while True:
        size = rng.between(SMALLEST_PIXELS, rng.one((20, 28, 44)))
        line = 1.5 * size
        if top + line > height:
            return
        left = rng.between(1, 20)
        while True:
            text = "".join(rng.one(rng.one((digits, ascii_letters))) for _ in range(rng.source.randint(1, 5)))
            ink = draw_ink(rng, text, size)
            if left + ink.mask.width > width - 1 or top + ink.mask.height > height - 1:
                break
            colour, rgb = _letter_colour(rng, background)
            cx, cy = left + ink.mask.width / 2, top + ink.mask.height / 2
            x, y = round(cx - ink.mask.width / 2), round(cy - ink.mask.height / 2)
            paste(canvas, ink.mask, rgb, cx, cy)
            for character, (x0, y0, x1, y1) in zip(text, ink.boxes, strict=True):
                yield _seen_character(character, colour, (x + x0, y + y0, x + x1, y + y1))
            left += ink.mask.width + rng.between(0.3, 1.2) * size
        top += line


def _seen_character(character: str, colour: str, box: tuple[float, float, float, float]) -> Seen:
    cx, cy = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return Seen(kind="text", name=character, colour=colour, size="medium", cx=cx, cy=cy, box=box)


def _shapes(rng: SampleRng, canvas: Pixels, background: Background) -> Iterator[Seen]:
    """Shapes in a grid, not quite in the middles of its meshes."""
    height, width = canvas.shape[:2]
    mesh = rng.between(18, 48)
    for row in range(int(height / mesh)):
        for column in range(int(width / mesh)):
            if rng.chance(0.3):
                continue
            diameter = rng.between(SMALLEST_SHAPE, mesh - 4)
            room = (mesh - 3 - diameter) / 2
            colour, rgb = _shape_colour(rng, background)
            shape = rng.one(SHAPES)
            thing = Thing(
                shape=shape,
                colour=colour,
                rgb=rgb,
                diameter=diameter,
                cx=(column + 0.5) * mesh + rng.between(-room, room),
                cy=(row + 0.5) * mesh + rng.between(-room, room),
                cell=0,
                size="medium",
                lines=outline(rng, shape),
                border=None,
            )
            yield stamp(rng, canvas, thing)


def _letter_colour(rng: SampleRng, background: Background) -> tuple[str, Rgb]:
    def clear(rgb: Rgb, ground: Rgb) -> bool:
        return abs(brightness(rgb) - brightness(ground)) >= CLEAR_BRIGHTNESS

    def draw() -> tuple[str, Rgb] | None:
        colour = rng.one(COLOURS)
        rgb = draw_rgb(rng, colour)
        return (colour, rgb) if clear(rgb, background.top) and clear(rgb, background.bottom) else None

    return rng.until(draw)


def _shape_colour(rng: SampleRng, background: Background) -> tuple[str, Rgb]:
    def draw() -> tuple[str, Rgb] | None:
        colour = rng.one(COLOURS)
        rgb = draw_rgb(rng, colour)
        nearest = min(distance(rgb, background.top), distance(rgb, background.bottom))
        return (colour, rgb) if nearest >= CLEAR_DISTANCE else None

    return rng.until(draw)
