"""Packs prompts into the arrays of a batch, sequences and media one after the other.

An image that several prompts share is packed once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.training.batching.prompts import MERGE, Ints, Prompt, grid, num_rows
from models.training.learning.pixels import PATCH_VALUES, SIDE
from models.training.learning.vision_pretraining import Labels, label, no_labels
from models.training.sample import SampleImage, SampleVideo

TOTAL_STEP = 256
"""Packed patches and tokens are padded to multiples of this, and answers to half of it: preparing a matrix product of a
new size takes the CPU's library about ten times as long as the product."""
LENGTHS = (32, 64, 96, 144, 208, 288, 400, 592, 784, 1024)
"""Lengths that segments are padded to for attention, for the same reason; longer ones to multiples of the last."""
NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of segments of one length, likewise."""
NOTHING = -100
"""The target of a padding row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Arrays for `blocks.Layout`."""

    groups: tuple[tuple[int, int], ...]
    rows: Ints
    places: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Arrays for `network.PackedMedia` and `network.PackedText`, and the targets."""

    patches: npt.NDArray[np.uint8]
    patch_positions: Ints
    patch_runs: Runs
    classes: npt.NDArray[np.int16]
    offsets: npt.NDArray[np.float32]
    token_ids: Ints
    positions: Ints
    token_runs: Runs
    media_tokens: Ints
    media_rows: Ints
    predicted: Ints
    """[answers]: tokens whose successor is learnt."""
    targets: Ints
    """[answers]: that successor, or NOTHING."""
    tasks: tuple[str, ...]
    """Task of each sequence."""
    owners: Ints
    """[answers]: of which sequence each is."""
    choices: tuple[tuple[int, Ints], ...]
    """(answer, ids): the target is one of these by a constraint."""
    num_media: int

    @property
    def num_media_rows(self) -> int:
        return len(self.patch_positions) // MERGE**2


def pack(prompts: Sequence[Prompt], extra: Iterable[SampleImage | SampleVideo] = ()) -> Batch:
    """Packs prompts, and media without a prompt."""
    media = list({id(medium): medium for prompt in prompts for medium in prompt.media}.values())
    media = [*media, *extra]
    return Batch(**_pack_media(media), **_pack_text(prompts, media))


def _pack_media(media: Sequence[SampleImage | SampleVideo]) -> dict[str, Any]:
    total = _filled(sum(map(num_rows, media)), TOTAL_STEP // MERGE**2)
    labels = [*map(_labels, media), no_labels(total - sum(map(num_rows, media)))]
    lengths = [length for moments, rows, columns in map(grid, media) for length in [rows * columns] * moments]
    return {
        "patches": _stack([cut(medium) for medium in media], total * MERGE**2, (2 * PATCH_VALUES,), np.uint8),
        "patch_positions": _stack([_patch_positions(medium) for medium in media], total * MERGE**2, (2,), np.int64),
        "patch_runs": lay_out(lengths, total * MERGE**2),
        "classes": np.concatenate([each.classes for each in labels]),
        "offsets": np.concatenate([each.offsets for each in labels]),
        "num_media": len(media),
    }


def _pack_text(prompts: Sequence[Prompt], media: Sequence[SampleImage | SampleVideo]) -> dict[str, Any]:
    first_rows = dict(zip(map(id, media), np.cumsum([0, *map(num_rows, media)]).tolist(), strict=False))
    lengths = [len(prompt.token_ids) for prompt in prompts]
    starts = np.cumsum([0, *lengths]).tolist()
    total = _filled(starts[-1], TOTAL_STEP)
    token_ids, positions = np.zeros(total, np.int64), np.zeros((3, total), np.int64)
    media_tokens, media_rows, predicted, owners = ([np.zeros(0, np.int64)] for _ in range(4))
    choices: list[tuple[int, Ints]] = []
    for index, (prompt, start) in enumerate(zip(prompts, starts, strict=False)):
        end = start + len(prompt.token_ids)
        token_ids[start:end], positions[:, start:end] = prompt.token_ids, prompt.positions
        for span, medium in zip(prompt.spans, prompt.media, strict=True):
            media_tokens.append(start + np.arange(span.start, span.end))
            media_rows.append(first_rows[id(medium)] + np.arange(span.num_tokens))
        before = sum(map(len, predicted))
        choices += [(before + int(prompt.learnt[1:token].sum()), ids) for token, ids in prompt.choices]
        predicted.append(start + np.flatnonzero(prompt.learnt[1:]))
        owners.append(np.full(len(predicted[-1]), index))
    questions = np.concatenate(predicted)
    filling = np.zeros(_filled(len(questions), TOTAL_STEP // 2) - len(questions), np.int64)
    return {
        "token_ids": token_ids,
        "positions": positions,
        "token_runs": lay_out(lengths, total),
        "media_tokens": np.concatenate(media_tokens),
        "media_rows": np.concatenate(media_rows),
        "predicted": np.concatenate([questions, filling]),
        "targets": np.concatenate([token_ids[questions + 1], filling + NOTHING]) if len(questions) else questions,
        "tasks": tuple(prompt.task for prompt in prompts),
        "owners": np.concatenate([*owners, filling]),
        "choices": tuple(choices),
    }


def lay_out(lengths: Sequence[int], total: int) -> Runs:
    """Groups segments by length.

    Args:
        lengths: lengths of the consecutive segments.
        total: number of all rows, including those after the last segment.
    """
    starts = np.cumsum([0, *lengths]).tolist()
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(_at_least(length, LENGTHS), []).append(index)
    groups: list[tuple[int, int]] = []
    rows: list[Ints] = [np.zeros(0, np.int64)]
    for length, indices in sorted(by_length.items()):
        runs = np.full((_at_least(len(indices), NUMBERS), length), total)
        for run, index in zip(runs, indices, strict=False):
            run[: lengths[index]] = np.arange(starts[index], starts[index + 1])
        groups.append(runs.shape)
        rows.append(runs.ravel())
    laid_out = np.concatenate(rows)
    places = np.full(total + 1, len(laid_out))
    places[laid_out] = np.arange(len(laid_out))
    return Runs(groups=tuple(groups), rows=laid_out, places=places[:total])


def _at_least(count: int, allowed: Sequence[int]) -> int:
    """Returns the smallest allowed length, or a multiple of the last."""
    return next((each for each in allowed if each >= count), _filled(count, allowed[-1]))


def _filled(count: int, step: int) -> int:
    return -(-count // step) * step


def _stack(parts: Sequence[npt.NDArray[Any]], total: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Concatenates the parts and pads with zeros to the total."""
    missing = total - sum(map(len, parts))
    return np.concatenate([*parts, np.zeros((missing, *shape), dtype)])


def cut(medium: SampleImage | SampleVideo) -> npt.NDArray[np.uint8]:
    """[patches, 2 · PATCH_VALUES]: channels, frames, rows, columns; squares of patches to be merged in sequence."""
    # An image is its own second frame.
    frames = np.stack([medium.pixels] * 2) if isinstance(medium, SampleImage) else medium.frames
    moments, rows, columns = grid(medium)
    squares = frames.reshape(moments, 2, rows // MERGE, MERGE, SIDE, columns // MERGE, MERGE, SIDE, 3)
    return squares.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(moments * rows * columns, -1)


def _patch_positions(medium: SampleImage | SampleVideo) -> Ints:
    moments, rows, columns = grid(medium)
    places = np.indices((rows, columns)).transpose(1, 2, 0)  # [rows, columns, 2]
    squares = places.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, 2).transpose(0, 2, 1, 3, 4)
    return np.tile(squares.reshape(-1, 2), (moments, 1))


def _labels(medium: SampleImage | SampleVideo) -> Labels:
    if isinstance(medium, SampleImage):
        return label(medium.objects, *medium.pixels.shape[:2])
    if not medium.objects:
        return no_labels(num_rows(medium))
    moments = [label(objects, *medium.frames.shape[1:3]) for objects in medium.objects[::2]]
    return Labels(
        classes=np.concatenate([moment.classes for moment in moments]),
        offsets=np.concatenate([moment.offsets for moment in moments]),
    )
