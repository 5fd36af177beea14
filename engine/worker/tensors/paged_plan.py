"""A step's attention plan for kernels that read the paged KV cache: those of the CPU and of CUDA."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedPlan:
    """A step's sequences on the device, as the kernels read them, so that CUDA graphs can refill copies.

    A padding sequence of a graph's batch has one query and one key, and may use any valid block.
    """

    block_tables: Tensor
    """int32 [sequences, blocks], padded with any valid block."""
    query_starts: Tensor
    """int32 [sequences + 1]: first packed row of each sequence, then the number of rows."""
    key_lengths: Tensor
    """int32 [sequences], at least 1."""
    max_query_length: int
    """Largest number of new tokens of a sequence; 1 in a decode step."""


def plan_attention(*, query_lengths: Sequence[int], key_lengths: Sequence[int], block_tables: Tensor) -> PagedPlan:
    """Returns the plan that all layers of a step share.

    Args:
        query_lengths: number of new tokens of each sequence, in packed order.
        key_lengths: number of tokens of each sequence so far, including the new ones.
        block_tables: [sequences, blocks], padded with any valid block; on the device.
    """
    device = block_tables.device
    numbers = [0, *accumulate(query_lengths), *key_lengths]
    # One copy from pinned memory, so that the host does not wait for the device.
    on_device = torch.tensor(numbers, dtype=torch.int32, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    return PagedPlan(
        block_tables=block_tables.to(torch.int32).contiguous(),
        query_starts=on_device[: len(query_lengths) + 1],
        key_lengths=on_device[len(query_lengths) + 1 :],
        max_query_length=max(query_lengths),
    )
