"""What an image holds before it is drawn: things, their sizes and places, and the background.

Decides what is small and large, where "top left" ends, and that an image can be described in one way only.
Knows no questions and draws nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from models.training.drawing.palette import COLOURS, Rgb, distance, draw_rgb, draw_tint
from models.training.drawing.shapes import SHAPES, Line, outline
from models.training.rng import SampleRng

PLACES = (
    "at the top left",
    "at the top",
    "at the top right",
    "on the left",
    "in the centre",
    "on the right",
    "at the bottom left",
    "at the bottom",
    "at the bottom right",
)
"""By cell of the 3×3 grid, row by row."""

SMALL = (0.15, 0.25)
"""Diameters of what is called small, as parts of the image's shorter side."""
LARGE = (0.36, 0.5)
"""Diameters of what is called large; a single thing may be larger."""
SMALLEST_PIXELS = 12
"""No thing is smaller: below, a star is a spot."""

_BORDERS: tuple[Rgb, ...] = ((0, 0, 0), (0, 0, 0), (60, 60, 60), (255, 255, 255))
"""Colours of the thin lines that some things have around them; they count for nothing."""

_BORDERED = ("circle", "square", "triangle", "rectangle", "diamond")
"""Shapes that may have one; of a thin shape it would leave too little."""
_BORDERED_PIXELS = 28
"""Smaller things have none, for the same reason."""

_EDGE = 0.055
"""How far a centre stays from the grid's lines, as a part of the side."""
_CLEAR = 150
"""The least `palette.distance` between a thing and its background."""
_GAP = 2
"""Pixels between the boxes of two things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One coloured shape."""

    shape: str
    """One of SHAPES."""
    colour: str
    """One of `palette.COLOURS`."""
    rgb: Rgb
    """How that colour looks here."""
    diameter: float
    """The longer side of its box, in pixels."""
    cx: float
    """Distance of the centre from the left, in pixels."""
    cy: float
    """Distance of the centre from the top, in pixels."""
    cell: int
    """The index of its place in PLACES."""
    size: str
    """"small", "large", or "medium" where nobody should be asked."""
    lines: tuple[Line, ...]
    """Outlines of the thing and of its hole, as `shapes.outline` gives them."""
    border: Rgb | None
    """The colour of a thin line around it, if there is one."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return PLACES[self.cell]

    def apart(self, other: "Thing") -> bool:
        """Whether the boxes of the two leave a gap."""
        reach = (self.diameter + other.diameter) / 2 + _GAP
        return abs(self.cx - other.cx) >= reach or abs(self.cy - other.cy) >= reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What is behind the things."""

    colour: str | None
    """Name of the colour, if it has a plain one."""
    top: Rgb
    """At the top, or everywhere."""
    bottom: Rgb
    """At the bottom; between them it changes evenly."""
    noise: float
    """Standard deviation of each pixel, in levels."""

    def shows(self, ink: Rgb) -> bool:
        """Whether something of this colour is clear on it."""
        return all(distance(ink, ground) >= _CLEAR for ground in (self.top, self.bottom))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An image to be drawn."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    things: tuple[Thing, ...]
    """From the top left to the bottom right, by cell."""
    background: Background
    """Behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a thing is, before it has a place."""

    shape: str
    """One of SHAPES."""
    colour: str
    """One of `palette.COLOURS`."""
    size: str | None = None
    """"small", "large", or None for any."""
    cell: int | None = None
    """The index of its place in PLACES, or None for any."""


def draw_look(rng: SampleRng, *, sized: bool = False) -> Look:
    """Any thing.

    Args:
        rng: The draws.
        sized: Whether it must be clearly small or large.
    """
    size = rng.one(("small", "large")) if sized else None
    return Look(shape=rng.one(SHAPES), colour=rng.one(COLOURS), size=size)


def draw_sides(rng: SampleRng) -> tuple[int, int]:
    """(width, height) of an image: mostly small, with any aspect ratio up to 1:4."""
    low, high = rng.weighted({(2, 4): 0.44, (3, 6): 0.32, (4, 9): 0.12, (6, 16): 0.05, (2, 10): 0.07})

    def draw() -> tuple[int, int] | None:
        first, second = (28 * rng.source.randint(low, high) for _ in range(2))
        largest, smallest = max(first, second), min(first, second)
        return (first, second) if largest <= min(rng.largest_side, 4 * smallest) else None

    if 28 * low > rng.largest_side:
        low, high = 2, rng.largest_side // 28
    return rng.until(draw)


def draw_scene(
    rng: SampleRng, looks: Sequence[Look], *, sides: tuple[int, int] | None = None, own_cells: bool = False
) -> Scene:
    """A scene with these things at places of their own.

    Args:
        rng: The draws.
        looks: The things.
        sides: (width, height) in pixels, or None for any.
        own_cells: Whether no two things share a cell of the grid.
    """

    def draw() -> Scene | None:
        width, height = sides or draw_sides(rng)
        things = _arrange(rng, looks, width, height, own_cells)
        if things is None:
            return None
        background = draw_background(rng, [thing.rgb for thing in things])
        if background is None:
            return None
        return Scene(width=width, height=height, things=in_order(things), background=background)

    return rng.until(draw)


def in_order(things: Sequence[Thing]) -> tuple[Thing, ...]:
    """Sorts things in the order of reading: row by row, from left to right."""
    return tuple(sorted(things, key=lambda thing: (thing.cell, thing.cx)))


def draw_background(rng: SampleRng, inks: Sequence[Rgb]) -> Background | None:
    """A background on which all inks are clear, or None if this draw gave none."""
    kind = rng.weighted({"white": 4, "black": 1, "named": 2, "pale": 2, "dark": 1, "pale fade": 1, "dark fade": 0.5})
    colour = rng.one(COLOURS) if kind == "named" else kind
    if colour in COLOURS:
        top = bottom = draw_rgb(rng, colour)
    else:
        dark = kind.startswith("dark")
        top = bottom = draw_tint(rng, dark=dark)
        bottom = draw_tint(rng, dark=dark) if kind.endswith("fade") else top
    noise = rng.between(1, 12) if rng.chance(0.15) else 0.0
    background = Background(colour=colour if colour in COLOURS else None, top=top, bottom=bottom, noise=noise)
    return background if all(background.shows(ink) for ink in inks) else None


def _arrange(rng: SampleRng, looks: Sequence[Look], width: int, height: int, own_cells: bool) -> list[Thing] | None:
    """The things where they fit, or None."""
    things: list[Thing] = []
    for look in looks:
        taken = {thing.cell for thing in things} if own_cells else set[int]()
        tries = (_placed(rng, look, width, height, alone=len(looks) == 1) for _ in range(12))
        fitting = (
            thing
            for thing in tries
            if thing is not None and thing.cell not in taken and all(thing.apart(other) for other in things)
        )
        thing = next(fitting, None)
        if thing is None:
            return None
        things.append(thing)
    return things


def _placed(rng: SampleRng, look: Look, width: int, height: int, *, alone: bool) -> Thing | None:
    """A thing somewhere well inside a cell, or None where it would stick out of the image."""
    diameter = _draw_diameter(rng, look.size, min(width, height), alone=alone)
    cell = rng.source.randrange(9) if look.cell is None else look.cell
    cx = _draw_centre(rng, width, cell % 3, diameter)
    cy = _draw_centre(rng, height, cell // 3, diameter)
    if cx is None or cy is None:
        return None
    part = diameter / min(width, height)
    return Thing(
        shape=look.shape,
        colour=look.colour,
        rgb=draw_rgb(rng, look.colour),
        diameter=diameter,
        cx=cx,
        cy=cy,
        cell=cell,
        size="small" if part <= SMALL[1] else "large" if part >= LARGE[0] else "medium",
        lines=outline(rng, look.shape),
        border=rng.one(_BORDERS)
        if look.shape in _BORDERED and diameter > _BORDERED_PIXELS and rng.chance(0.1)
        else None,
    )


def _draw_diameter(rng: SampleRng, size: str | None, side: int, *, alone: bool) -> float:
    """Pixels, for an image whose shorter side is `side`."""
    if size is None:
        part = rng.between(SMALL[0], 0.75) if alone else rng.between(SMALL[0], 0.42)
    elif size == "small":
        part = rng.between(*SMALL)
    else:
        part = rng.between(LARGE[0], 0.85) if alone and rng.chance(0.3) else rng.between(*LARGE)
    return max(SMALLEST_PIXELS, part * side)


def _draw_centre(rng: SampleRng, side: int, third: int, diameter: float) -> float | None:
    """A coordinate well inside a third of a side, or None if the thing would stick out."""
    low = max(side * (third / 3 + _EDGE), diameter / 2 + 1)
    high = min(side * ((third + 1) / 3 - _EDGE), side - diameter / 2 - 1)
    return rng.between(low, high) if low <= high else None
