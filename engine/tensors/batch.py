"""Packs the chunks of a step into the tensors of one forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glimpse.engine.plan import PENDING_TOKEN_ID, MediaSpan, SequenceChunk
from glimpse.engine.tensors.transfer import upload

IntArray = npt.NDArray[np.int64]

NO_SAMPLED_ROWS: Mapping[int, int] = {}
"""No earlier step has sampled anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """The rotary positions of one sequence's tokens, and where its media are."""

    prompt_positions: IntArray
    """[3, prompt tokens]: time, height, width."""
    delta: int
    """Position of a generated token (the same on all axes) minus its index."""
    spans: tuple[MediaSpan, ...]
    """In the order of `start`."""
    bidirectional_runs: bool = False
    """The tokens of a run of placeholders attend to each other, also to later ones."""

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_positions.shape[1]

    def position(self, index: int) -> tuple[int, int, int]:
        """Returns the position of a token: time, height, width."""
        if index < self.num_prompt_tokens:
            time, height, width = self.prompt_positions[:, index].tolist()
            return time, height, width
        position = index + self.delta
        return position, position, position


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRows:
    """Tokens of a batch whose embeddings come from an encoder output."""

    key: bytes
    """Of the encoder output."""
    offset: int
    """First row taken from the encoder output."""
    row: int
    """First row of the batch that is filled."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTokens:
    """Tokens of a batch that the previous step samples on the device."""

    rows: Tensor
    """int64 [pending tokens]: their rows in the batch."""
    sources: Tensor
    """int64 [pending tokens]: their rows in the previous step's sampled tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass over the packed tokens of all chunks of a step."""

    token_ids: Tensor
    """int64 [tokens]; those of `pending_tokens` are not filled in yet."""
    pending_tokens: PendingTokens | None
    positions: Tensor
    """int64 [3, tokens]"""
    slots: Tensor
    """int64 [tokens]: where keys and values are written, block * block_size + offset in the block."""
    block_tables: Tensor
    """int64 [sequences, blocks], padded with 0."""
    query_lengths: tuple[int, ...]
    """Tokens of each chunk."""
    key_lengths: tuple[int, ...]
    """Tokens of each sequence up to the end of its chunk."""
    key_lengths_on_device: Tensor
    """int64 [sequences]: the same."""
    media: tuple[MediaRows, ...]
    bidirectional: tuple[tuple[int, int], ...]
    """(first row, number of rows) of tokens that attend to each other, whatever their order."""
    sampled_rows: Tensor
    """int64 [rows]: for each chunk that samples, the token before each draft token, then the last token."""

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one new token, which is sampled and not a media token."""
        num_sequences = len(self.query_lengths)
        return self.token_ids.shape[0] == self.sampled_rows.shape[0] == num_sequences and not self.media


_PlacedChunk: TypeAlias = tuple[SequenceChunk, SequenceLayout, int]
"""A chunk, the layout of its sequence, and the row of its first token."""


def make_batch(
    chunks: Sequence[SequenceChunk],
    layouts: Mapping[int, SequenceLayout],
    *,
    block_size: int,
    device: torch.device,
    last_sampled_rows: Mapping[int, int] = NO_SAMPLED_ROWS,
) -> Batch:
    """Packs chunks, in their order.

    Args:
        chunks: At least one.
        layouts: Sequence id → layout, for every chunk.
        block_size: Tokens in a block.
        device: Of the tensors.
        last_sampled_rows: Sequence id → its row in the previous step's sampled tokens, for chunks with a pending token.
    """
    lengths = [len(chunk.token_ids) for chunk in chunks]
    key_lengths = [chunk.start + length for chunk, length in zip(chunks, lengths, strict=True)]
    first_rows = [0, *accumulate(lengths[:-1])]
    placed = [(chunk, layouts[chunk.sequence_id], row) for chunk, row in zip(chunks, first_rows, strict=True)]
    pending = [
        (first_row + len(chunk.token_ids) - 1, last_sampled_rows[chunk.sequence_id])
        for chunk, _, first_row in placed
        if chunk.token_ids[-1] == PENDING_TOKEN_ID
    ]
    make_rows = _single_rows if len(chunks) == sum(lengths) else _packed_rows
    tensors = upload(
        {
            **make_rows(placed, block_size),
            "block_tables": _pad([chunk.block_table for chunk in chunks]),
            "key_lengths_on_device": np.array(key_lengths, dtype=np.int64),
            "pending_rows": np.array([row for row, _ in pending], dtype=np.int64),
            "pending_sources": np.array([source for _, source in pending], dtype=np.int64),
        },
        device,
    )
    pending_tokens = PendingTokens(rows=tensors.pop("pending_rows"), sources=tensors.pop("pending_sources"))
    return Batch(
        pending_tokens=pending_tokens if pending else None,
        query_lengths=tuple(lengths),
        key_lengths=tuple(key_lengths),
        media=tuple(rows for chunk in placed for rows in _media_rows(*chunk)),
        bidirectional=tuple(
            (rows.row, rows.num_tokens)
            for chunk in placed
            if chunk[1].bidirectional_runs
            for rows in _media_rows(*chunk)
        ),
        **tensors,
    )


def _packed_rows(placed: Sequence[_PlacedChunk], block_size: int) -> dict[str, IntArray]:
    """Returns what `Batch` holds of each token, and the sampled rows."""
    chunks = [chunk for chunk, _, _ in placed]
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int64)
    ends = lengths.cumsum()
    sequence_rows = np.repeat(np.arange(len(chunks)), lengths)  # [tokens]: the chunk that a token belongs to
    indices = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)  # [tokens]: index in the sequence
    tables = _pad([chunk.block_table for chunk in chunks])
    num_sampled = [1 + chunk.num_draft_tokens if chunk.samples else 0 for chunk in chunks]
    return {
        "token_ids": np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64),
        "positions": _positions(placed, indices, lengths),
        "slots": tables[sequence_rows, indices // block_size] * block_size + indices % block_size,
        "sampled_rows": np.concatenate([np.arange(end - n, end) for end, n in zip(ends, num_sampled, strict=True)]),
    }


def _single_rows(placed: Sequence[_PlacedChunk], block_size: int) -> dict[str, IntArray]:
    """As `_packed_rows`, for chunks of one token each: decode steps, where a few numbers are faster without NumPy."""
    places = [(chunk.block_table, *divmod(chunk.start, block_size)) for chunk, _, _ in placed]
    return {
        "token_ids": np.array([chunk.token_ids[0] for chunk, _, _ in placed], dtype=np.int64),
        "positions": np.array([layout.position(chunk.start) for chunk, layout, _ in placed], dtype=np.int64).T.copy(),
        "slots": np.array([table[block] * block_size + offset for table, block, offset in places], dtype=np.int64),
        "sampled_rows": np.array([row for chunk, _, row in placed if chunk.samples], dtype=np.int64),
    }


def _pad(block_tables: Sequence[tuple[int, ...]]) -> IntArray:
    padded = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int64)
    for row, blocks in zip(padded, block_tables, strict=True):
        row[: len(blocks)] = blocks
    return padded


def _positions(placed: Sequence[_PlacedChunk], indices: IntArray, lengths: IntArray) -> IntArray:
    deltas = np.array([layout.delta for _, layout, _ in placed], dtype=np.int64)
    positions = np.tile(indices + np.repeat(deltas, lengths), (3, 1))  # correct for generated tokens
    for chunk, layout, row in placed:
        prompt = layout.prompt_positions[:, chunk.start : chunk.start + len(chunk.token_ids)]
        positions[:, row : row + prompt.shape[1]] = prompt
    return positions


def _media_rows(chunk: SequenceChunk, layout: SequenceLayout, row: int) -> list[MediaRows]:
    chunk_end = chunk.start + len(chunk.token_ids)
    return [
        MediaRows(key=span.key, offset=offset, row=row + start - chunk.start, num_tokens=num_tokens)
        for span in layout.spans
        for offset, start, num_tokens in span.rows_between(chunk.start, chunk_end)
    ]
