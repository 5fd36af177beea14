"""From a step's chunks to the tensors of one packed forward pass. Pure arithmetic; knows no model and no cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.plan import MediaSpan, SequenceChunk

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """Where the tokens of one sequence stand for rotary embedding, and where its media are."""

    prompt_positions: IntArray
    """[3, prompt tokens]: time, height, width."""
    delta: int
    """Position of a generated token (the same on all axes) minus its index."""
    spans: tuple[MediaSpan, ...]
    """In the order of `start`."""


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
class Batch:
    """One forward pass over the packed tokens of all chunks of a step."""

    token_ids: Tensor
    """int64 [tokens]"""
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
    media: tuple[MediaRows, ...]
    sampled_rows: Tensor
    """int64 [rows]: of each chunk that samples the last token, and before it the token ahead of each of its guesses."""


def make_batch(
    chunks: Sequence[SequenceChunk], layouts: Mapping[int, SequenceLayout], *, block_size: int, device: torch.device
) -> Batch:
    """Packs chunks, in their order.

    Args:
        chunks: of the step, at least one.
        layouts: sequence id → its layout, for every chunk.
        block_size: tokens in a block.
        device: of the tensors.
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
    num_sampled = [1 + chunk.num_guesses if chunk.samples else 0 for chunk in chunks]
    sampled = [np.arange(end - num, end) for end, num in zip(ends, num_sampled, strict=True)]

    def tensor(array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Batch(
        token_ids=tensor(token_ids),
        positions=tensor(_positions(places, indices, lengths)),
        slots=tensor(slots),
        block_tables=tensor(tables),
        query_lengths=tuple(lengths.tolist()),
        key_lengths=tuple((starts + lengths).tolist()),
        media=tuple(rows for place in places for rows in _media_rows(*place)),
        sampled_rows=tensor(np.concatenate(sampled)),
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
