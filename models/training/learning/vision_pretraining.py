"""Direct supervision of the vision encoder: for each output row, what its cell shows and where.

From answers alone the encoder learns slowly; this labels every cell. The heads are dropped on export.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.training.drawing.palette import COLOURS
from models.training.drawing.scene import SHAPES
from models.training.sample import Seen

CELL = 28
"""Pixels of the square that becomes one row."""
POINT_ROWS, POINT_COLUMNS = 2, 4
"""Points of a cell that are labelled; more along the row, because letters are side by side."""
NUM_POINTS = POINT_ROWS * POINT_COLUMNS

WHATS = {what: index for index, what in enumerate((*SHAPES, *string.digits, *string.ascii_letters), 1)}
"""Classes of a point; 0 is nothing."""
COLOUR_IDS = {colour: index for index, colour in enumerate(COLOURS, 1)}
SIZES = {"small": 0, "medium": 1, "large": 2}
MOST_CENTRES = 3
"""Most centres of a kind that are counted in one cell."""

IGNORE = -100
"""Marks a label that is not used."""

WIDTHS: Mapping[str, tuple[int, int]] = {
    "what": (NUM_POINTS, 1 + len(WHATS)),
    "colour": (NUM_POINTS, 1 + len(COLOURS)),
    "size": (1, len(SIZES)),
    "place": (1, 9),
    "shapes": (1, MOST_CENTRES + 1),
    "characters": (1, MOST_CENTRES + 1),
}
"""Question → (answers in a row, classes of an answer). The last two count the centres that lie in the cell."""

NUM_COLUMNS = sum(answers for answers, _ in WIDTHS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Labels of the rows of some media."""

    classes: npt.NDArray[np.int16]
    """[rows, NUM_COLUMNS], the columns in the order of WIDTHS; IGNORE where nothing is asked."""
    offsets: npt.NDArray[np.float32]
    """[rows, 2]: from the cell's centre to that of what is in it, right and down, in cells; NaN where nothing is."""


def label(objects: Sequence[Seen], height: int, width: int) -> Labels:
    """Returns the labels of an image, cell by cell."""
    rows, columns = height // CELL, width // CELL
    points = np.zeros((2, rows * POINT_ROWS, columns * POINT_COLUMNS), dtype=np.int16)  # what, colour
    cells = np.full((2, rows, columns), IGNORE, dtype=np.int16)  # size, place
    centres = np.zeros((2, rows, columns), dtype=np.int16)  # shapes, characters
    offsets = np.full((rows, columns, 2), np.nan, dtype=np.float32)
    for seen in objects:
        where = _covered(seen, CELL / POINT_ROWS, CELL / POINT_COLUMNS, points.shape[1:])
        points[0][where] = WHATS.get(seen.name, IGNORE)
        points[1][where] = COLOUR_IDS.get(seen.colour, IGNORE)
        where = _covered(seen, CELL, CELL, (rows, columns))
        cells[0][where] = SIZES[seen.size] if seen.kind == "shape" else IGNORE
        cells[1][where] = min(int(3 * seen.cy / height), 2) * 3 + min(int(3 * seen.cx / width), 2)
        middle = _nearest(seen, CELL, CELL, (rows, columns))
        cells[1][middle] = cells[1][where].flat[0] if cells[1][where].size else IGNORE
        centres[int(seen.kind == "text")][middle] += 1
        _point_to(offsets, seen, where)
        _point_to(offsets, seen, (slice(middle[0], middle[0] + 1), slice(middle[1], middle[1] + 1)))
    by_cell = points.reshape(2, rows, POINT_ROWS, columns, POINT_COLUMNS).transpose(1, 3, 0, 2, 4)
    parts = [by_cell.reshape(rows * columns, -1), *cells.reshape(2, -1, 1)]
    parts += [np.minimum(count, MOST_CENTRES).reshape(-1, 1) for count in centres]
    return Labels(classes=np.concatenate(parts, axis=1), offsets=offsets.reshape(-1, 2))


def no_labels(num_rows: int) -> Labels:
    """Returns empty labels for unlabelled media."""
    return Labels(
        classes=np.full((num_rows, NUM_COLUMNS), IGNORE, dtype=np.int16),
        offsets=np.full((num_rows, 2), np.nan, dtype=np.float32),
    )


class Heads(nn.Module):
    """A linear head for all labels of a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(width, sum(answers * classes for answers, classes in WIDTHS.values()) + 2)
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)

    def forward(self, rows: Tensor, classes: Tensor, offsets: Tensor) -> dict[str, Tensor]:
        """Losses by question.

        Args:
            rows: of the tower, [rows, width].
            classes: int64 [rows, NUM_COLUMNS], see `Labels`.
            offsets: float32 [rows, 2], likewise.
        """
        read = functional.linear(rows, self.read.weight.to(rows.dtype), self.read.bias.to(rows.dtype)).float()
        losses: dict[str, Tensor] = {}
        start = column = 0
        for name, (answers, num_classes) in WIDTHS.items():
            scores = read[:, start : start + answers * num_classes].reshape(-1, num_classes)
            targets = classes[:, column : column + answers].reshape(-1)
            losses[name] = _cross_entropy(scores, targets, balanced=name not in ("size", "place"))
            start += answers * num_classes
            column += answers
        known = ~offsets.isnan()
        pointed = read[:, start:][known]
        losses["offset"] = functional.smooth_l1_loss(pointed, offsets[known]) if len(pointed) else read.sum() * 0
        return losses


def _cross_entropy(scores: Tensor, targets: Tensor, *, balanced: bool) -> Tensor:
    """Returns the mean loss; if balanced, averages something and nothing separately, so that rare classes count."""
    each = functional.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="none")
    if not balanced:
        return each.sum() / (targets != IGNORE).sum().clamp(min=1)
    something, nothing = targets > 0, targets == 0
    rare = (each * something).sum() / something.sum().clamp(min=1)
    return rare + 0.3 * (each * nothing).sum() / nothing.sum().clamp(min=1)


def _covered(seen: Seen, step_y: float, step_x: float, shape: tuple[int, ...]) -> tuple[slice, slice]:
    """The points of a grid, in the middle of its meshes, that lie in a box; at least the one nearest to its centre."""
    x0, y0, x1, y1 = seen.box
    top, bottom = round(y0 / step_y), round(y1 / step_y)
    left, right = round(x0 / step_x), round(x1 / step_x)
    row, column = _nearest(seen, step_y, step_x, shape)
    if bottom <= top:
        top, bottom = row, row + 1
    if right <= left:
        left, right = column, column + 1
    return slice(max(top, 0), bottom), slice(max(left, 0), right)


def _nearest(seen: Seen, step_y: float, step_x: float, shape: tuple[int, ...]) -> tuple[int, int]:
    row = min(max(int(seen.cy / step_y), 0), shape[0] - 1)
    return row, min(max(int(seen.cx / step_x), 0), shape[1] - 1)


def _point_to(offsets: npt.NDArray[np.float32], seen: Seen, where: tuple[slice, slice]) -> None:
    rows, columns = (np.arange(count)[part] for count, part in zip(offsets.shape[:2], where, strict=True))
    offsets[where[0], where[1], 0] = seen.cx / CELL - (columns + 0.5)
    offsets[where[0], where[1], 1] = (seen.cy / CELL - (rows + 0.5))[:, None]


def dense_loss(losses: Mapping[str, Tensor]) -> Tensor:
    """One number of all questions."""
    return torch.stack([_WEIGHTS.get(name, 1.0) * loss for name, loss in losses.items()]).sum()


_WEIGHTS = {"what": 2.0, "size": 0.5, "place": 0.5, "offset": 0.5}
