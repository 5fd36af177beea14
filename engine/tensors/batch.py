"""From a step's chunks to the tensors of one packed forward pass. Pure arithmetic; knows no model and no cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glimpse.engine.plan import PENDING_TOKEN_ID, MediaSpan, SequenceChunk
from glimpse.engine.tensors.transfer import upload

IntArray = npt.NDArray[np.int64]

NOTHING_SAID: Mapping[int, int] = {}
"""No step before has sampled anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """Where the tokens of one sequence stand for rotary embedding, and where its media are."""

    prompt_positions: IntArray
    """[3, prompt tokens]: time, height, width."""
    delta: int
    """Position of a generated token (the same on all axes) minus its index."""
    spans: tuple[MediaSpan, ...]
    """In the order of `start`."""

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_positions.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRows:
    """Tokens of a batch whose embeddings come from an encoder output."""

    key: bytes
    """Of the encoder output."""
    offset: int
    """First row taken from it."""
    row: int
    """First row of the batch that it fills."""
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTokens:
    """Tokens of a batch that the step before has sampled."""

    rows: Tensor
    """int64 [promises]: where they stand in the batch."""
    places: Tensor
    """int64 [promises]: which of the step's samples they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward pass over the packed tokens of all chunks of a step."""

    token_ids: Tensor
    """int64 [tokens]; those of `pending_tokens` are still to be filled in."""
    pending_tokens: PendingTokens | None
    positions: Tensor
    """int64 [3, tokens]"""
    slots: Tensor
    """int64 [tokens]: where keys and values are written, block · block_size + place in the block."""
    block_tables: Tensor
    """int64 [sequences, blocks], padded with 0."""
    query_lengths: tuple[int, ...]
    """Tokens of each chunk."""
    key_lengths: tuple[int, ...]
    """Tokens of each sequence up to the end of its chunk."""
    key_lengths_on_device: Tensor
    """int64 [sequences]: the same."""
    media: tuple[MediaRows, ...]
    sampled_rows: Tensor
    """int64 [rows]: of each chunk that samples the last token, and before it the token ahead of each of its guesses."""


def make_batch(
    chunks: Sequence[SequenceChunk],
    layouts: Mapping[int, SequenceLayout],
    *,
    block_size: int,
    device: torch.device,
    said: Mapping[int, int] = NOTHING_SAID,
) -> Batch:
    """Packs chunks, in their order.

    Args:
        chunks: of the step, at least one.
        layouts: sequence id → its layout, for every chunk.
        block_size: tokens in a block.
        device: of the tensors.
        said: sequence id → which of the samples of the step before is its, for every chunk with a promised token.
    """
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int64)
    ends = lengths.cumsum()
    sequence_rows = np.repeat(np.arange(len(chunks)), lengths)  # [tokens]: which chunk a token belongs to
    indices = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)  # [tokens]: place in its sequence
    tables = _pad([chunk.block_table for chunk in chunks])
    slots = tables[sequence_rows, indices // block_size] * block_size + indices % block_size
    first_rows: list[int] = (ends - lengths).tolist()
    places = [(chunk, layouts[chunk.sequence_id], row) for chunk, row in zip(chunks, first_rows, strict=True)]
    token_ids = np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64)
    num_sampled = [1 + chunk.num_draft_tokens if chunk.samples else 0 for chunk in chunks]
    sampled = [np.arange(end - num, end) for end, num in zip(ends, num_sampled, strict=True)]
    promised = np.flatnonzero(token_ids == PENDING_TOKEN_ID)
    sources = np.array([said[chunks[row].sequence_id] for row in sequence_rows[promised]], dtype=np.int64)
    tensors = upload(
        [
            token_ids,
            _positions(places, indices, lengths),
            slots,
            tables,
            np.concatenate(sampled),
            promised,
            sources,
            starts + lengths,
        ],
        device,
    )
    return Batch(
        token_ids=tensors[0],
        positions=tensors[1],
        slots=tensors[2],
        block_tables=tensors[3],
        query_lengths=tuple(lengths.tolist()),
        key_lengths=tuple((starts + lengths).tolist()),
        key_lengths_on_device=tensors[7],
        media=tuple(rows for place in places for rows in _media_rows(*place)),
        sampled_rows=tensors[4],
        pending_tokens=PendingTokens(rows=tensors[5], places=tensors[6]) if len(promised) else None,
    )


def _pad(block_tables: Sequence[tuple[int, ...]]) -> IntArray:
    padded = np.zeros((len(block_tables), max(map(len, block_tables))), dtype=np.int64)
    for row, blocks in zip(padded, block_tables, strict=True):
        row[: len(blocks)] = blocks
    return padded


def _positions(
    places: Sequence[tuple[SequenceChunk, SequenceLayout, int]], indices: IntArray, lengths: IntArray
) -> IntArray:
    deltas = np.array([layout.delta for _, layout, _ in places], dtype=np.int64)
    positions = np.tile(indices + np.repeat(deltas, lengths), (3, 1))  # right for generated tokens
    for chunk, layout, row in places:
        prompt = layout.prompt_positions[:, chunk.start : chunk.start + len(chunk.token_ids)]
        positions[:, row : row + prompt.shape[1]] = prompt
    return positions


def _media_rows(chunk: SequenceChunk, layout: SequenceLayout, row: int) -> list[MediaRows]:
    chunk_end = chunk.start + len(chunk.token_ids)
    overlaps = [(span, max(span.start, chunk.start), min(span.end, chunk_end)) for span in layout.spans]
    return [
        MediaRows(key=span.key, offset=start - span.start, row=row + start - chunk.start, num_tokens=end - start)
        for span, start, end in overlaps
        if start < end
    ]
