"""Boxes and points in answers: found in the forms of a family, and mapped to pixels of the image file."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from glimpse.engine.checkpoint.families.grounding import Form, JsonForm, TextForm
from glimpse.media.processing.sizing.placement import ImagePlacement, Point

MAX_GROUNDINGS = 4096
"""Most boxes and points of an answer; further ones are left out."""
_MAX_COORDINATE = 1e9
_OBJECT = re.compile(r'\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}', re.DOTALL)
"""A JSON object without objects in it. It takes time in proportion to the text: whatever starts in a match that failed
ends at the next brace that is not in a string."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounding:
    """A box or a point in pixels of an image file, before its EXIF orientation is applied."""

    image_index: int
    """Index among the images of the prompt."""
    label: str
    """Empty if the model wrote none."""
    corners: tuple[Point, ...]
    """The upper left and the lower right corner of a box; of a point itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    place: int
    """Index of the first character in the text."""
    label: str
    coordinates: Sequence[float]
    """Four or two, as written."""


def find_groundings(
    text: str, forms: Sequence[Form], placement: ImagePlacement, *, image_index: int
) -> tuple[Grounding, ...]:
    """Returns the boxes and points of an answer in the order of the text, those outside of the image left out.

    Args:
        image_index: index of the image among those of the prompt.
    """
    found = ((each, form) for form in forms for each in islice(_find(text, form), MAX_GROUNDINGS))
    return tuple(
        Grounding(image_index=image_index, label=each.label, corners=corners)
        for each, form in sorted(found, key=lambda pair: pair[0].place)[:MAX_GROUNDINGS]
        if (corners := _map(each.coordinates, form, placement))
    )


def _find(text: str, form: Form) -> Iterator[_Found]:
    return _find_json(text, form) if isinstance(form, JsonForm) else _find_text(text, form)


def _find_json(text: str, form: JsonForm) -> Iterator[_Found]:
    for match in _OBJECT.finditer(text):
        try:
            value: dict[str, Any] = msgspec.json.decode(match[0])
        except (msgspec.MsgspecError, RecursionError):  # the model wrote something else
            continue
        label = value.get("label")
        for member, count in ((form.box, 4), (form.point, 2)):
            numbers = value.get(member) if member else None
            if isinstance(numbers, list) and len(numbers) == count and all(map(_is_coordinate, numbers)):
                yield _Found(place=match.start(), label=label if isinstance(label, str) else "", coordinates=numbers)


def _find_text(text: str, form: TextForm) -> Iterator[_Found]:
    for match in form.pattern.finditer(text):
        groups = match.groupdict()
        name, count = ("box", 4) if "box" in groups else ("point", 2)
        numbers = [*map(float, _NUMBER.findall(groups[name]))]
        if len(numbers) % count or not all(map(_is_coordinate, numbers)):
            continue
        label = (groups.get("label") or "").strip()
        for start in range(0, len(numbers), count):
            yield _Found(place=match.start(), label=label, coordinates=numbers[start : start + count])


def _is_coordinate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_COORDINATE


def _map(coordinates: Sequence[float], form: Form, placement: ImagePlacement) -> tuple[Point, ...]:
    """Returns the corners in the image file; none if nothing of it is in the image."""
    placement = placement.unpadded if form.of_source else placement
    height, width = placement.shown
    scale_x, scale_y = (1, 1) if form.scale is None else (width / form.scale, height / form.scale)
    ordered = coordinates if not form.y_first else [coordinates[index ^ 1] for index in range(len(coordinates))]
    left, top, right, bottom = ordered if len(ordered) == 4 else (*ordered, *ordered)
    left, top = max(left * scale_x, 0), max(top * scale_y, 0)
    right, bottom = min(right * scale_x, width), min(bottom * scale_y, height)
    if len(ordered) == 2:
        return (placement.to_source(left, top),) if (left, top) == (right, bottom) else ()
    if left >= right or top >= bottom:
        return ()
    return placement.box_to_source(((left, top), (right, bottom)))
