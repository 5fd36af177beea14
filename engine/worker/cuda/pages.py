"""Converts block tables to the page lists that FlashInfer reads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Pages (blocks) of a step's sequences, without the padding of their block tables."""

    starts: IntArray
    """[sequences + 1]: index of each sequence's first page, then the number of pages."""
    places: IntArray
    """[pages]: index of each page in the flattened block tables."""
    last_lengths: IntArray
    """[sequences]: number of tokens in the last page of each sequence, at least 1."""


def make_pages(key_lengths: Sequence[int], *, block_size: int, table_width: int) -> Pages:
    """Returns the pages of sequences with these lengths, at least 1, whose block tables have `table_width` columns."""
    lengths = np.array(key_lengths, dtype=np.int32)
    counts = -(-lengths // block_size)
    starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    first_places = np.arange(len(lengths)) * table_width
    places = np.arange(starts[-1]) + np.repeat(first_places - starts[:-1], counts)
    return Pages(starts=starts, places=places.astype(np.int32), last_lengths=lengths - (counts - 1) * block_size)
