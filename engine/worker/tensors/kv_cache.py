"""The paged memory of keys and values, in blocks and slots. The block pool tracks which sequence owns a block.

Shapes are those of the tensors' views. On the CPU the memory layout is what the native kernels read: each head's part
of a block is contiguous, keys one after the other, values dimension by dimension.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class LayerCache(NamedTuple):
    """The cache of one layer."""

    keys: Tensor
    """[num_blocks, block_size, kv_heads, head_dim]"""
    values: Tensor
    """[num_blocks, block_size, kv_heads, head_dim]"""

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Stores new tokens.

        Args:
            slots: int64 [tokens]: block * block_size + offset in the block, without duplicates.
            key: [tokens, kv_heads, head_dim]
            value: [tokens, kv_heads, head_dim]
        """
        block_size = self.keys.shape[1]
        blocks, offsets = slots // block_size, slots % block_size
        self.keys[blocks, offsets] = key
        self.values[blocks, offsets] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """Keys and values of all layers."""

    keys: Tensor
    """[layers, num_blocks, block_size, kv_heads, head_dim]"""
    values: Tensor
    """[layers, num_blocks, block_size, kv_heads, head_dim]"""

    @property
    def num_blocks(self) -> int:
        return self.keys.shape[1]

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    def layer(self, index: int) -> LayerCache:
        return LayerCache(self.keys[index], self.values[index])


def block_bytes(*, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Returns the size of one block in bytes, keys and values of all layers."""
    return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize


def allocate_kv_cache(
    *,
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """Allocates a cache of zeros. Attention also reads masked slots, where NaN would spread."""
    if device.type != "cpu":
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        return KVCache(
            keys=torch.zeros(shape, dtype=dtype, device=device), values=torch.zeros(shape, dtype=dtype, device=device)
        )
    keys = _zeros((num_layers, num_blocks, num_kv_heads, block_size, head_dim), dtype)
    values = _zeros((num_layers, num_blocks, num_kv_heads, head_dim, block_size), dtype)
    return KVCache(keys=keys.permute(0, 1, 3, 2, 4), values=values.permute(0, 1, 4, 2, 3))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # torch writes the zeros; NumPy's come from the kernel, page by page, when they are first touched.
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
