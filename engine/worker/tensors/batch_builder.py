"""Packs the chunks of each step into a batch. The block tables are kept between steps: see `table_rows`."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch

from glimpse.engine.core.plan import PENDING_TOKEN_ID, SequenceChunk
from glimpse.engine.worker.tensors.batch import (
    AdapterRows,
    Batch,
    IntArray,
    MediaRows,
    PendingTokens,
    SequenceLayout,
    SlidingBlocks,
    StateRows,
)
from glimpse.engine.worker.tensors.table_rows import TableRows
from glimpse.engine.worker.tensors.transfer import upload

NO_SAMPLED_ROWS: Mapping[int, int] = {}
"""No earlier step has sampled anything."""


class BatchBuilder:
    """The sequences of a runner, and the batches of its steps."""

    def __init__(self, *, block_size: int, device: torch.device, keeps_tables_there: bool | None = None) -> None:
        """
        Args:
            keeps_tables_there: The block tables have a copy on the device. Default: unless it is the CPU, which reads
                those of the host.
        """
        self._device = device
        self._layouts: dict[int, SequenceLayout] = {}
        self._adapters: dict[int, int] = {}  # sequence id → its adapter, of those with one
        self._rows: dict[int, int] = {}  # sequence id → its row in what follows
        self._free_rows: list[int] = []
        self._deltas: IntArray = np.zeros(0, dtype=np.int64)  # [rows]: as in the layout
        self._prompt_lengths: IntArray = np.zeros(0, dtype=np.int64)  # [rows]
        has_copy = device.type != "cpu" if keeps_tables_there is None else keeps_tables_there
        self._make_tables = partial(TableRows, block_size=block_size, device=device, has_copy=has_copy)
        self._tables = self._make_tables("")
        self._sliding_tables: TableRows | None = None  # None: no chunk has had blocks of sliding layers

    def add(self, sequence_id: int, layout: SequenceLayout, adapter: int | None = None) -> None:
        """Takes in a sequence, or replaces the layout of one. `adapter`: the number of its adapter."""
        self._layouts[sequence_id] = layout
        if adapter is not None:
            self._adapters[sequence_id] = adapter
        row = self._rows.get(sequence_id)
        if row is None:
            if not self._free_rows:
                self._grow()
            row = self._rows[sequence_id] = self._free_rows.pop()
        self._deltas[row] = layout.delta
        self._prompt_lengths[row] = layout.num_prompt_tokens

    def remove(self, sequence_id: int) -> None:
        """Forgets a sequence, if it is known."""
        if self._layouts.pop(sequence_id, None) is not None:
            self._adapters.pop(sequence_id, None)
            row = self._rows.pop(sequence_id)
            self._tables.clear(row)
            if self._sliding_tables is not None:
                self._sliding_tables.clear(row)
            self._free_rows.append(row)

    def build(
        self, chunks: Sequence[SequenceChunk], *, last_sampled_rows: Mapping[int, int] = NO_SAMPLED_ROWS
    ) -> Batch:
        """Packs chunks, in their order.

        Args:
            chunks: At least one, of sequences that were added, at most one of each.
            last_sampled_rows: Sequence id → its row in the previous step's sampled tokens, for chunks with a pending
                token.
        """
        rows = [self._rows[chunk.sequence_id] for chunk in chunks]
        self._tables.write(rows, [chunk.block_table for chunk in chunks])
        if chunks[0].sliding_table is not None:
            self._write_sliding(rows, chunks)
        table_rows = np.array(rows, dtype=np.int64)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        lengths = [len(chunk.token_ids) for chunk in chunks]
        is_single = len(lengths) == sum(lengths)  # nearly always: all decode
        key_lengths = starts + lengths
        pack = self._single_rows if is_single else self._packed_rows
        arrays = pack(chunks, table_rows, starts)
        pending = np.flatnonzero(arrays["token_ids"] == PENDING_TOKEN_ID)
        if pending.size:
            owners = [chunk for chunk in chunks if chunk.token_ids[-1] == PENDING_TOKEN_ID]
            arrays["pending_rows"] = pending
            arrays["pending_sources"] = np.array([last_sampled_rows[chunk.sequence_id] for chunk in owners])
        arrays["key_lengths_on_device"] = key_lengths
        width = self._tables.width(rows)
        arrays |= self._tables.arrays(table_rows, width)
        if (sliding_tables := self._sliding_tables) is not None:
            arrays |= sliding_tables.arrays(table_rows, width)
        tensors = upload(arrays, self._device)
        sliding = None
        if sliding_tables is not None:
            sliding = SlidingBlocks(tensors["sliding_slots"], sliding_tables.step_tables(tensors, width))
        pending_tokens = None
        if pending.size:
            pending_tokens = PendingTokens(rows=tensors.pop("pending_rows"), sources=tensors.pop("pending_sources"))
        media, bidirectional = self._media_rows(chunks, starts, lengths, table_rows)
        return Batch(
            token_ids=tensors["token_ids"],
            pending_tokens=pending_tokens,
            positions=tensors["positions"],
            slots=tensors["slots"],
            block_tables=self._tables.step_tables(tensors, width),
            sliding=sliding,
            query_lengths=tuple(lengths),
            key_lengths=tuple(key_lengths.tolist()),
            key_lengths_on_device=tensors["key_lengths_on_device"],
            media=media,
            bidirectional=bidirectional,
            states=_state_rows(chunks) if chunks[0].states is not None else (),
            adapters=self._adapter_rows(chunks) if self._adapters else (),
            sampled_rows=tensors["sampled_rows"],
            num_sampled=_num_sampled(chunks),
        )

    def _grow(self) -> None:
        """Makes room for another sequence, and for some more."""
        num_rows = 1 << len(self._rows).bit_length()
        added = num_rows - len(self._deltas)
        self._free_rows += reversed(range(len(self._deltas), num_rows))
        self._deltas, self._prompt_lengths = (np.pad(each, (0, added)) for each in (self._deltas, self._prompt_lengths))
        self._tables.grow(num_rows)
        if self._sliding_tables is not None:
            self._sliding_tables.grow(num_rows)

    def _write_sliding(self, rows: Sequence[int], chunks: Sequence[SequenceChunk]) -> None:
        if self._sliding_tables is None:
            self._sliding_tables = self._make_tables("sliding_")
            self._sliding_tables.grow(len(self._deltas))
        self._sliding_tables.write(rows, [chunk.sliding_table or () for chunk in chunks])

    def _slots(self, table_rows: IntArray, indices: IntArray) -> dict[str, IntArray]:
        """Returns where tokens are in the cache; the arguments are those of `TableRows.slots`."""
        slots = {"slots": self._tables.slots(table_rows, indices)}
        if self._sliding_tables is not None:
            slots["sliding_slots"] = self._sliding_tables.slots(table_rows, indices)
        return slots

    def _single_rows(
        self, chunks: Sequence[SequenceChunk], table_rows: IntArray, starts: IntArray
    ) -> dict[str, IntArray]:
        """Returns what `Batch` holds of each token, and the sampled rows, for chunks of one token each."""
        positions = np.empty((3, len(chunks)), dtype=np.int64)
        positions[:] = starts + self._deltas[table_rows]  # correct for generated tokens
        for row in np.flatnonzero(starts < self._prompt_lengths[table_rows]).tolist():
            chunk = chunks[row]
            positions[:, row] = self._layouts[chunk.sequence_id].prompt_positions[:, chunk.start]
        return {
            "token_ids": np.array([chunk.token_ids[0] for chunk in chunks], dtype=np.int64),
            "positions": positions,
            **self._slots(table_rows, starts),
            "sampled_rows": np.flatnonzero([chunk.samples for chunk in chunks]),
        }

    def _packed_rows(
        self, chunks: Sequence[SequenceChunk], table_rows: IntArray, starts: IntArray
    ) -> dict[str, IntArray]:
        """Does what `_single_rows` does, for chunks of any length."""
        lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int64)
        ends = lengths.cumsum()
        token_rows = np.repeat(table_rows, lengths)  # [tokens]: row of the sequence that a token belongs to
        indices = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)  # [tokens]: index in the sequence
        positions = np.empty((3, len(indices)), dtype=np.int64)
        positions[:] = indices + self._deltas[token_rows]  # correct for generated tokens
        for index in np.flatnonzero(starts < self._prompt_lengths[table_rows]).tolist():
            chunk, row = chunks[index], ends[index] - lengths[index]
            prompt = self._layouts[chunk.sequence_id].prompt_positions[:, chunk.start : chunk.start + lengths[index]]
            positions[:, row : row + prompt.shape[1]] = prompt
        return {
            "token_ids": np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64),
            "positions": positions,
            **self._slots(token_rows, indices),
            "sampled_rows": np.concatenate(
                [np.arange(end - n, end) for end, n in zip(ends, _num_sampled(chunks), strict=True)]
            ),
        }

    def _adapter_rows(self, chunks: Sequence[SequenceChunk]) -> tuple[AdapterRows, ...]:
        found: list[AdapterRows] = []
        row = 0
        for chunk in chunks:
            num_rows = len(chunk.token_ids)
            if (slot := self._adapters.get(chunk.sequence_id)) is not None:
                found.append(AdapterRows(row, num_rows, slot))
            row += num_rows
        return tuple(found)

    def _media_rows(
        self, chunks: Sequence[SequenceChunk], starts: IntArray, lengths: Sequence[int], table_rows: IntArray
    ) -> tuple[tuple[MediaRows, ...], tuple[tuple[int, int], ...]]:
        """Returns `media` and `bidirectional` of a batch."""
        in_prompts = np.flatnonzero(starts < self._prompt_lengths[table_rows]).tolist()
        layouts = {index: self._layouts[chunks[index].sequence_id] for index in in_prompts}
        if not any(layout.spans or layout.bidirectional for layout in layouts.values()):
            return (), ()
        first_rows = np.cumsum([0, *lengths]).tolist()
        own = [(chunks[index], layout, first_rows[index]) for index, layout in layouts.items()]
        media = chain.from_iterable(_rows_of_media(*each) for each in own)
        bidirectional = chain.from_iterable(_bidirectional_rows(*each) for each in own)
        return tuple(media), tuple(bidirectional)


def make_batch(
    chunks: Sequence[SequenceChunk],
    layouts: Mapping[int, SequenceLayout],
    *,
    block_size: int,
    device: torch.device,
    last_sampled_rows: Mapping[int, int] = NO_SAMPLED_ROWS,
) -> Batch:
    """Packs the chunks of a single step. `layouts`: sequence id → layout, for every chunk."""
    builder = BatchBuilder(block_size=block_size, device=device)
    for chunk in chunks:
        builder.add(chunk.sequence_id, layouts[chunk.sequence_id])
    return builder.build(chunks, last_sampled_rows=last_sampled_rows)


def _num_sampled(chunks: Sequence[SequenceChunk]) -> tuple[int, ...]:
    return tuple([1 + chunk.num_draft_tokens if chunk.samples else 0 for chunk in chunks])


def _state_rows(chunks: Sequence[SequenceChunk]) -> tuple[StateRows, ...]:
    found: list[StateRows] = []
    row = 0
    for chunk in chunks:
        assert chunk.states is not None
        reads, continues = chunk.states.reads, False
        for num_tokens, writes in chunk.states.writes:
            found.append(StateRows(row, num_tokens, reads, writes, continues))
            row, reads, continues = row + num_tokens, writes, True
    return tuple(found)


def _bidirectional_rows(chunk: SequenceChunk, layout: SequenceLayout, row: int) -> list[tuple[int, int]]:
    chunk_end = chunk.start + len(chunk.token_ids)
    parts = ((max(first, chunk.start), min(end, chunk_end)) for first, end in layout.bidirectional)
    return [(row + first - chunk.start, end - first) for first, end in parts if first < end]


def _rows_of_media(chunk: SequenceChunk, layout: SequenceLayout, row: int) -> list[MediaRows]:
    chunk_end = chunk.start + len(chunk.token_ids)
    return [
        MediaRows(key=span.key, offset=offset, row=row + start - chunk.start, num_tokens=num_tokens)
        for span in layout.spans
        for offset, start, num_tokens in span.rows_between(chunk.start, chunk_end)
    ]
