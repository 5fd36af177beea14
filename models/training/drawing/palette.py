"""The colours that have names here, and how far one of them may be from its ideal. Knows nothing of shapes."""

import colorsys
import math
from collections.abc import Mapping
from dataclasses import dataclass

from models.training.rng import SampleRng

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Where a colour lies in hue, saturation and value."""

    hue: tuple[float, float] = (0, 360)
    """Degrees; may go past 360."""
    saturation: tuple[float, float]
    """From 0 to 1."""
    value: tuple[float, float]
    """From 0 to 1."""


_RANGES: Mapping[str, Range] = {
    "red": Range(hue=(352, 366), saturation=(0.78, 1), value=(0.8, 1)),
    "green": Range(hue=(95, 148), saturation=(0.6, 1), value=(0.45, 1)),
    "blue": Range(hue=(210, 243), saturation=(0.65, 1), value=(0.55, 1)),
    "yellow": Range(hue=(51, 61), saturation=(0.7, 1), value=(0.92, 1)),
    "orange": Range(hue=(24, 39), saturation=(0.85, 1), value=(0.92, 1)),
    "purple": Range(hue=(270, 300), saturation=(0.55, 1), value=(0.45, 0.75)),
    "pink": Range(hue=(325, 350), saturation=(0.27, 0.55), value=(0.95, 1)),
    "brown": Range(hue=(14, 29), saturation=(0.6, 0.85), value=(0.36, 0.56)),
    "black": Range(saturation=(0, 0.3), value=(0, 0.1)),
    "white": Range(saturation=(0, 0.02), value=(0.96, 1)),
    "grey": Range(saturation=(0, 0.04), value=(0.42, 0.66)),
}
"""The eleven basic colour terms of English, kept well apart."""

COLOURS = tuple(_RANGES)

_IDEALS: Mapping[str, tuple[Rgb, ...]] = {
    "red": ((255, 0, 0), (220, 20, 60)),
    "green": ((0, 128, 0), (0, 255, 0), (34, 139, 34), (0, 160, 0)),
    "blue": ((0, 0, 255), (30, 144, 255), (65, 105, 225), (0, 0, 139)),
    "yellow": ((255, 255, 0), (255, 215, 0)),
    "orange": ((255, 165, 0), (255, 140, 0)),
    "purple": ((128, 0, 128), (148, 0, 211), (138, 43, 226)),
    "pink": ((255, 192, 203), (255, 105, 180)),
    "brown": ((139, 69, 19), (165, 42, 42), (101, 67, 33)),
    "black": ((0, 0, 0),),
    "white": ((255, 255, 255),),
    "grey": ((128, 128, 128), (105, 105, 105), (169, 169, 169)),
}
"""What web pages and drawing libraries mean by these names."""


def draw_rgb(rng: SampleRng, colour: str) -> Rgb:
    """A colour that everybody would call by this name."""
    if rng.chance(0.35):
        return rng.one(_IDEALS[colour])
    bounds = _RANGES[colour]
    return _from_hsv(rng.between(*bounds.hue), rng.between(*bounds.saturation), rng.between(*bounds.value))


def draw_tint(rng: SampleRng, *, dark: bool) -> Rgb:
    """A pale or a dark colour for a background."""
    value = rng.between(0.05, 0.3) if dark else rng.between(0.88, 1)
    return _from_hsv(rng.between(0, 360), rng.between(0, 0.5 if dark else 0.15), value)


def distance(one: Rgb, other: Rgb) -> float:
    """How different two colours look: 0 for equal ones, 765 from black to white."""
    red, green, blue = (first - second for first, second in zip(one, other, strict=True))
    return math.sqrt(2 * red * red + 4 * green * green + 3 * blue * blue)


def brightness(rgb: Rgb) -> float:
    """How bright a colour looks, from 0 to 255."""
    red, green, blue = rgb
    return 0.3 * red + 0.59 * green + 0.11 * blue


def _from_hsv(hue: float, saturation: float, value: float) -> Rgb:
    red, green, blue = colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)
