"""Short texts as ink: faces, sizes, slants, and where each character came to stand. Knows no colours and no words."""

import math
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from models.training.rng import SampleRng

Box = tuple[float, float, float, float]

SMALLEST_PIXELS = 14
"""The least size of a font: below, an 8 is a spot."""
_BITMAP_HEIGHT = 11
"""Pixels of a line of Pillow's bitmap font."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ink:
    """A line of text as a mask."""

    mask: Image.Image
    """Levels of ink; cropped to it."""
    boxes: tuple[Box, ...]
    """(x0, y0, x1, y1) of each character but spaces, in the mask's pixels."""


def draw_ink(rng: SampleRng, text: str, size: float) -> Ink:
    """A text in some face; `size` is about the height of a line, in pixels."""
    ink = _in_bitmap(rng, text, size) if rng.chance(0.08) else _in_outlines(rng, text, size)
    if rng.chance(0.3):
        ink = _run_of_history(ink, _draw_stretch(rng))
    if rng.chance(0.3):
        ink = _slanted(ink, degrees=_draw_degrees(rng), shear=rng.between(-0.1, 0.25) if rng.chance(0.4) else 0.0)
    return _cropped(ink)


def _draw_stretch(rng: SampleRng) -> float:
    """How wide, as a part of normal; the judge's range is not among the learnt ones."""
    return rng.between(1.04, 1.1) if rng.held_out else rng.one((rng.between(0.78, 1.0), rng.between(1.12, 1.35)))


def _draw_degrees(rng: SampleRng) -> float:
    """How turned; the judge's range is not among the learnt ones."""
    size = rng.between(2.5, 3.5) if rng.held_out else rng.one((rng.between(0, 2), rng.between(4, 9)))
    return rng.one((-1, 1)) * size


def _in_outlines(rng: SampleRng, text: str, size: float) -> Ink:
    """In Pillow's own scalable font, in several weights and spacings."""
    font = _font(round(size))
    stroke = rng.weighted({0: 0.65, 1: 0.25, 2: 0.1}) if size >= 20 else rng.weighted({0: 0.8, 1: 0.2})
    gap = stroke + (rng.between(0, 0.15) * size if rng.chance(0.3) else 0.0)
    places: list[float] = []
    x = 2.0 + stroke
    for character in text:
        places.append(round(x))
        x += font.getlength(character) + gap
    mask = Image.new("L", (round(x) + 4, round(size * 1.5) + 8))
    pen = ImageDraw.Draw(mask)
    baseline = size * 1.1 + 4
    boxes: list[Box] = []
    for character, place in zip(text, places, strict=True):
        pen.text((place, baseline), character, fill=255, font=font, anchor="ls", stroke_width=stroke)
        x0, y0, x1, y1 = font.getbbox(character, anchor="ls", stroke_width=stroke)
        if character != " ":
            boxes.append((place + x0, baseline + y0, place + x1, baseline + y1))
    return Ink(mask=mask, boxes=tuple(boxes))


def _in_bitmap(rng: SampleRng, text: str, size: float) -> Ink:
    """In Pillow's bitmap font, each pixel made large, or blurred in doing so."""
    font = _bitmap_font()
    scale = max(2, round(size / _BITMAP_HEIGHT))
    widths = [font.getbbox(character)[2] for character in text]
    mask = Image.new("L", (int(sum(widths)), _BITMAP_HEIGHT))
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)
    sampling = rng.one((Image.Resampling.NEAREST, Image.Resampling.BICUBIC))
    boxes: list[Box] = []
    x = 0.0
    for character, width in zip(text, widths, strict=True):
        if character != " ":
            boxes.append((x * scale, 0, (x + width) * scale, _BITMAP_HEIGHT * scale))
        x += width
    return Ink(mask=mask.resize((mask.width * scale, mask.height * scale), sampling), boxes=tuple(boxes))


def _run_of_history(ink: Ink, factor: float) -> Ink:
    mask = ink.mask.resize((max(1, round(ink.mask.width * factor)), ink.mask.height), Image.Resampling.BICUBIC)
    return Ink(mask=mask, boxes=tuple((x0 * factor, y0, x1 * factor, y1) for x0, y0, x1, y1 in ink.boxes))


def _slanted(ink: Ink, *, degrees: float, shear: float) -> Ink:
    """Turned, clockwise for positive degrees, and leaning to the right by `shear` pixels for each pixel upwards."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # (x, y) from the middle goes to (a x + b y, c x + d y).
    a, b, c, d = cosine, -sine - shear * cosine, sine, cosine - shear * sine
    width, height = ink.mask.size
    new_width, new_height = math.ceil(abs(a) * width + abs(b) * height), math.ceil(abs(c) * width + abs(d) * height)
    determinant = a * d - b * c
    ia, ib, ic, id_ = d / determinant, -b / determinant, -c / determinant, a / determinant
    back = (
        *(ia, ib, width / 2 - ia * new_width / 2 - ib * new_height / 2),
        *(ic, id_, height / 2 - ic * new_width / 2 - id_ * new_height / 2),
    )
    mask = ink.mask.transform((new_width, new_height), Image.Transform.AFFINE, back, Image.Resampling.BICUBIC)

    def moved(box: Box) -> Box:
        x, y = (box[0] + box[2] - width) / 2, (box[1] + box[3] - height) / 2
        middle_x, middle_y = a * x + b * y + new_width / 2, c * x + d * y + new_height / 2
        half_x, half_y = (box[2] - box[0]) / 2, (box[3] - box[1]) / 2
        return middle_x - half_x, middle_y - half_y, middle_x + half_x, middle_y + half_y

    return Ink(mask=mask, boxes=tuple(moved(box) for box in ink.boxes))


def _cropped(ink: Ink) -> Ink:
    left, top, right, bottom = ink.mask.getbbox() or (0, 0, *ink.mask.size)
    boxes = tuple(
        (max(x0, left) - left, max(y0, top) - top, min(x1, right) - left, min(y1, bottom) - top)
        for x0, y0, x1, y1 in ink.boxes
    )
    return Ink(mask=ink.mask.crop((left, top, right, bottom)), boxes=boxes)


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise TypeError("this Pillow was built without FreeType, and has no scalable font")
    return font


@lru_cache(maxsize=1)
def _bitmap_font() -> ImageFont.ImageFont:
    return ImageFont.load_default_imagefont()
