"""What LoRA adapters (arXiv 2106.09685) add to linears: up · down · x, with matrices of each adapter."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from glimpse.engine.worker.tensors.batch import AdapterRows, IntArray

_SORTED_ROWS = 16
"""The native kernels multiply as many rows together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRankUpdatePart:
    """What an adapter adds to one of the matrices that a linear stacks."""

    ranks: slice
    """The outputs of `down` that it reads."""
    outputs: slice
    """The outputs of the linear that it adds to."""
    up: Tensor
    """[outputs, ranks]"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRankUpdate:
    """What an adapter adds to a linear."""

    down: Tensor
    """[ranks of all parts, in]"""
    parts: Sequence[LowRankUpdatePart]

    @property
    def num_bytes(self) -> int:
        return self.down.nbytes + sum(part.up.nbytes for part in self.parts)

    def to(self, device: torch.device) -> "LowRankUpdate":
        parts = [replace(part, up=part.up.to(device)) for part in self.parts]
        return LowRankUpdate(down=self.down.to(device), parts=parts)


class LowRankUpdates:
    """What all adapters add to a linear, by their slots."""

    def __init__(self, linear: nn.Module, num_slots: int) -> None:
        del linear
        self.adapters: list[LowRankUpdate | None] = [None] * num_slots

    def put(self, slot: int, added: LowRankUpdate | None) -> None:
        """Replaces what an adapter adds; None: nothing."""
        self.adapters[slot] = added


class AdaptedRows:
    """The rows of a step that have adapters."""

    def __init__(self, adapters: Iterable[AdapterRows]) -> None:
        """`adapters`: of rows in any order."""
        none, ranges = np.zeros(0, dtype=np.int64), [*adapters]
        rows = np.concatenate([none, *(np.arange(row, row + count) for row, count, _ in ranges)])
        slots = np.concatenate([none, *(np.full(count, slot) for _, count, slot in ranges)])
        order = np.lexsort((rows, slots, rows // _SORTED_ROWS))
        self.rows: IntArray = rows[order]
        """Each 16 of the step's rows are sorted by their adapters."""
        self.slots: IntArray = slots[order]
        """The adapter of each."""

    def within(self, num_rows: int) -> "AdaptedRows":
        """Returns these rows, of so many."""
        del num_rows
        return self

    def among(self, chosen: Tensor) -> "AdaptedRows":
        """Returns those of these rows that are among some, int64 in order, numbered as there."""
        numbers = chosen.cpu().numpy()
        places = np.searchsorted(numbers, self.rows)
        found = numbers[np.minimum(places, len(numbers) - 1)] == self.rows
        pairs = zip(places[found].tolist(), self.slots[found].tolist(), strict=True)
        return AdaptedRows(AdapterRows(place, 1, slot) for place, slot in pairs)

    @cached_property
    def groups(self) -> Sequence[tuple[int, Tensor]]:
        """The slot and the rows, int64, of each adapter."""
        return [(int(slot), torch.from_numpy(self.rows[self.slots == slot])) for slot in np.unique(self.slots)]


class EveryRow(AdaptedRows):
    """All rows, however many, have one adapter: those of an encoder, which computes with patches and merged ones."""

    def __init__(self, slot: int) -> None:
        super().__init__(())
        self._slot = slot
        self._numbers: dict[int, AdaptedRows] = {}

    def within(self, num_rows: int) -> AdaptedRows:
        """Returns the first `num_rows` rows."""
        if num_rows not in self._numbers:
            self._numbers[num_rows] = AdaptedRows([AdapterRows(0, num_rows, self._slot)])
        return self._numbers[num_rows]
