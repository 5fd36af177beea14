"""Block tables as lists of pages one after the other, as FlashInfer reads them. Plain arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The blocks of a step's sequences, without the padding of their tables."""

    starts: IntArray
    """[sequences + 1]: where each sequence's blocks begin, and how many there are."""
    places: IntArray
    """[blocks]: where each stands in the flattened block tables."""
    last_lengths: IntArray
    """[sequences]: tokens in the last block of each, from 1 on."""


def make_pages(key_lengths: Sequence[int], *, block_size: int, table_width: int) -> Pages:
    """Pages of sequences with so many tokens, at least 1 each, whose tables are padded to a width."""
    lengths = np.array(key_lengths, dtype=np.int32)
    counts = -(-lengths // block_size)
    starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    first_places = np.arange(len(lengths)) * table_width
    places = np.arange(starts[-1]) + np.repeat(first_places - starts[:-1], counts)
    return Pages(starts=starts, places=places.astype(np.int32), last_lengths=lengths - (counts - 1) * block_size)
