"""The block tables of a runner's sequences, kept between steps as they change little.

A block table is appended to when its sequence fills a block, which is once in many steps. So each sequence has a row of
a table of all sequences, whose new entries alone are written; on a GPU there is a copy of it, and new entries alone are
uploaded. A step's block tables are the rows of its sequences.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from glimpse.engine.worker.tensors.batch import IntArray

_NO_BLOCKS: Sequence[int] = ()


class TableRows:
    """The block tables of one kind of layers. The caller gives each sequence a row."""

    def __init__(self, prefix: str, *, block_size: int, device: torch.device, has_copy: bool) -> None:
        """
        Args:
            prefix: begins the names of arrays that are uploaded.
            has_copy: There is a copy on the device.
        """
        self._prefix = prefix
        self._block_size = block_size
        self._device = device
        self._tables: IntArray = np.zeros((0, 0), dtype=np.int64)  # [rows, blocks]
        self._written: list[Sequence[int]] = []  # the block table in each row of `_tables`
        self._num_written: list[int] = []  # how many of its blocks the row has
        self._copy = torch.zeros(0, 0, dtype=torch.int64, device=device) if has_copy else None
        self._changed: list[tuple[int, int, int]] = []  # (row, first column, end) of what the copy lacks

    def grow(self, num_rows: int, num_blocks: int = 0) -> None:
        """Makes room for so many rows, and blocks of a sequence."""
        old_rows, old_blocks = self._tables.shape
        added = max(num_rows - old_rows, 0)
        self._written += [_NO_BLOCKS] * added
        self._num_written += [0] * added
        self._tables = np.pad(self._tables, ((0, added), (0, max(num_blocks - old_blocks, 0))))
        if self._copy is not None:
            # It is written anew: what was written since the last step is not in the old one.
            self._copy = torch.from_numpy(self._tables.copy()).to(self._device)

    def clear(self, row: int) -> None:
        """Forgets the block table in a row."""
        self._written[row], self._num_written[row] = _NO_BLOCKS, 0

    def write(self, rows: Sequence[int], block_tables: Sequence[Sequence[int]]) -> None:
        """Writes the blocks that rows lack of their block tables."""
        written, num_written = self._written, self._num_written
        for row, block_table in zip(rows, block_tables, strict=True):
            if written[row] is not block_table:
                written[row], num_written[row] = block_table, 0  # another list: the sequence was preempted
            start, end = num_written[row], len(block_table)
            if start < end:
                if end > self._tables.shape[1]:
                    self.grow(0, 1 << (end - 1).bit_length())
                self._tables[row, start:end] = block_table[start:end]
                num_written[row] = end
                if self._copy is not None:
                    self._changed.append((row, start, end))

    def width(self, rows: Sequence[int]) -> int:
        """Returns the most blocks that a row has."""
        return max(map(self._num_written.__getitem__, rows))

    def slots(self, rows: IntArray, indices: IntArray) -> IntArray:
        """Returns where tokens are in the cache: [tokens]. `indices`: of each in its sequence, whose row `rows` has."""
        blocks, offsets = np.divmod(indices, self._block_size)
        return self._tables[rows, blocks] * self._block_size + offsets

    def arrays(self, rows: IntArray, width: int) -> dict[str, IntArray]:
        """Returns the block tables of a step; for a copy on the device, what it lacks and which rows to take of it."""
        if self._copy is None:
            return {f"{self._prefix}block_tables": self._tables[rows, :width]}
        row_width = self._tables.shape[1]
        places = [np.arange(row * row_width + start, row * row_width + end) for row, start, end in self._changed]
        changed_places = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
        return {
            f"{self._prefix}table_rows": rows,
            f"{self._prefix}changed_places": changed_places,
            f"{self._prefix}changed_blocks": self._tables.reshape(-1)[changed_places],
        }

    def step_tables(self, uploaded: Mapping[str, torch.Tensor], width: int) -> torch.Tensor:
        """Returns the block tables of a step, [sequences, blocks], from its `arrays` on the device."""
        if self._copy is None:
            return uploaded[f"{self._prefix}block_tables"]
        changed_places = uploaded[f"{self._prefix}changed_places"]
        if len(changed_places):
            # Steps launched before have read the copy by then: a device works in the order of launches.
            self._copy.view(-1)[changed_places] = uploaded[f"{self._prefix}changed_blocks"]
        self._changed.clear()
        return self._copy[:, :width].index_select(0, uploaded[f"{self._prefix}table_rows"])
