"""How models write boxes and points in their answers, as data. Each family lists its forms with their source."""

import re
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coordinates:
    """One way to write coordinates of an image: those of a box are left, top, right and bottom."""

    scale: int | None
    """The coordinate of the right and the lower edge; None: coordinates are pixels of the image that the model sees."""
    y_first: bool = False
    """Coordinates are top, left, bottom and right; of a point y and x."""
    of_source: bool = False
    """Coordinates are those of the image as it was sent, even where what the model sees is padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm(_Coordinates):
    """JSON objects, in a list, in text or alone. Their label is in `label`."""

    box: str
    """Member that has four numbers."""
    point: str | None = None
    """Member that has two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm(_Coordinates):
    """Numbers in text, special tokens included."""

    pattern: re.Pattern[str]
    """A group `box` has the numbers of boxes, four of each, or a group `point` those of points; a group `label`, which
    may be missing, has the label of all."""


Form: TypeAlias = JsonForm | TextForm

TAGGED_BOXES = re.compile(r"(?:<ref>(?P<label>[^<]*)</ref>\s*)?<box>(?P<box>[^<]*)</box>")
"""What InternVL and MiniCPM-V write, with other marks between the numbers."""
LOCATION_TOKENS = TextForm(
    pattern=re.compile(r"(?P<box>(?:<loc\d{4}>){4})[ \t]*(?P<label>[^<;\n]*)"), scale=1024, y_first=True
)
"""What PaliGemma writes (arXiv 2407.07726, section 3), and checkpoints of Gemma 3 tuned for detection."""
