"""The tensors of one forward pass over the packed chunks of a step."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glimpse.engine.protocol.media import MediaSpan

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLayout:
    """The rotary positions of one sequence's tokens, and where its media are."""

    prompt_positions: IntArray
    """[3, prompt tokens]: time, height, width."""
    delta: int
    """Position of a generated token (the same on all axes) minus its index."""
    spans: tuple[MediaSpan, ...]
    """In the order of `start`."""
    bidirectional: tuple[tuple[int, int], ...] = ()
    """(first token, end) of the parts of the prompt whose tokens attend to each other, also to later ones."""

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_positions.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRows:
    """Tokens of a batch whose embeddings come from an encoder output."""

    key: bytes
    """Key of the encoder output."""
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


class StateRows(NamedTuple):
    """Consecutive rows of a sequence, and the states that layers with states read before and write after them."""

    row: int
    num_rows: int
    reads: int
    """-1: a state of zeros."""
    writes: int
    continues: bool
    """Follows the rows before it in the same sequence."""


class AdapterRows(NamedTuple):
    """Consecutive rows whose tokens are computed with an adapter."""

    row: int
    num_rows: int
    slot: int
    """Number of the adapter."""


class SlidingBlocks(NamedTuple):
    """What a batch has for sliding layers with blocks of their own."""

    slots: Tensor
    block_tables: Tensor
    """Blocks before a sequence's window may be any."""


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
    """int64 [sequences, blocks], padded with any block."""
    sliding: SlidingBlocks | None = None
    """What sliding layers have in place of `slots` and `block_tables`; None: the same."""
    query_lengths: tuple[int, ...]
    """Tokens of each chunk."""
    key_lengths: tuple[int, ...]
    """Tokens of each sequence up to the end of its chunk."""
    key_lengths_on_device: Tensor
    """int64 [sequences]: the same."""
    media: tuple[MediaRows, ...]
    bidirectional: tuple[tuple[int, int], ...]
    """(first row, number of rows) of tokens that attend to each other, whatever their order."""
    states: tuple[StateRows, ...] = ()
    """All rows, in their order; empty if no layer keeps states."""
    adapters: tuple[AdapterRows, ...] = ()
    """In the order of rows. Those that are missing have none."""
    sampled_rows: Tensor
    """int64 [rows]: for each chunk that samples, the token before each draft token, then the last token."""
    num_sampled: tuple[int, ...]
    """How many of these each chunk has."""

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one new token, which is sampled and not a media token."""
        num_sequences = len(self.query_lengths)
        return self.token_ids.shape[0] == self.sampled_rows.shape[0] == num_sequences and not self.media

    def sampled(self) -> "Batch":
        """Returns a batch of the sampled rows, at least one, for layers that store nothing."""
        rows, sliding = self.sampled_rows, self.sliding
        chunks = [index for index, number in enumerate(self.num_sampled) if number]
        counts = tuple(self.num_sampled[index] for index in chunks)
        return replace(
            self,
            token_ids=self.token_ids[rows],
            pending_tokens=None,
            positions=self.positions[:, rows],
            slots=self.slots[rows],
            block_tables=self.block_tables[chunks],
            sliding=sliding and SlidingBlocks(sliding.slots[rows], sliding.block_tables[chunks]),
            query_lengths=counts,
            key_lengths=tuple(self.key_lengths[index] for index in chunks),
            key_lengths_on_device=self.key_lengths_on_device[chunks],
            media=(),
            bidirectional=(),
            states=(),
            sampled_rows=torch.arange(len(rows), device=rows.device),
            num_sampled=counts,
        )
