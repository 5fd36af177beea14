"""Steps for the tests of attention: sequences with filled caches, on the device on which kernels run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.attention import CudaAttentionPlan, paged_attention, plan_attention
from engine.kv_cache import LayerCache, allocate_kv_cache
from engine.layers.attention import paged_attention as plain_paged_attention
from engine.layers.attention import plan_attention as plan_plain_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Sequences, and the queries of their last tokens."""

    query: Tensor
    """[tokens, heads, head_dim]"""
    cache: LayerCache
    """What is not a sequence's is NaN."""
    block_tables: Tensor
    query_lengths: Sequence[int]
    key_lengths: Sequence[int]

    def plan(self) -> CudaAttentionPlan:
        return plan_attention(
            query_lengths=self.query_lengths, key_lengths=self.key_lengths, block_tables=self.block_tables
        )

    def attend(self) -> Tensor:
        return paged_attention(self.query, self.cache, self.plan())

    def sequence(self, index: int) -> "Step":
        """One sequence alone, its table as short as it may be."""
        row = sum(self.query_lengths[:index])
        num_blocks = -(-self.key_lengths[index] // self.cache.keys.shape[1])
        return Step(
            query=self.query[row : row + self.query_lengths[index]].contiguous(),
            cache=self.cache,
            block_tables=self.block_tables[index : index + 1, :num_blocks],
            query_lengths=[self.query_lengths[index]],
            key_lengths=[self.key_lengths[index]],
        )


def make_cache(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> LayerCache:
    return allocate_kv_cache(
        num_layers=1,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=DEVICE,
    ).layer(0)


def make_step(
    lengths: Sequence[tuple[int, int]],
    *,
    head_dim: int = 64,
    num_kv_heads: int = 2,
    num_shared: int = 6,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Step:
    """Each pair is a number of new tokens and of those cached before them."""
    generator = torch.Generator().manual_seed(seed)
    key_lengths = [new + cached for new, cached in lengths]
    table_width = -(-max(key_lengths) // block_size)
    tables = torch.randperm(len(lengths) * table_width + 2, generator=generator)[2:].view(len(lengths), -1)
    cache = make_cache(len(lengths) * table_width + 2, block_size, num_kv_heads, head_dim, dtype)
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.nan)
    for table, num_keys in zip(tables, key_lengths, strict=True):
        index = torch.arange(num_keys)
        key, value = torch.randn(2, num_keys, num_kv_heads, head_dim, generator=generator).to(DEVICE, dtype)
        cache.write((table[index // block_size] * block_size + index % block_size).to(DEVICE), key, value)
    num_tokens = sum(new for new, _ in lengths)
    query = torch.randn(num_tokens, num_kv_heads * num_shared, head_dim, generator=generator)
    return Step(
        query=query.to(DEVICE, dtype),
        cache=cache,
        block_tables=tables.to(DEVICE),
        query_lengths=[new for new, _ in lengths],
        key_lengths=key_lengths,
    )


def plain(step: Step) -> Tensor:
    """The plain twin in float32."""
    keys, values = (tensor.float().nan_to_num() for tensor in (step.cache.keys, step.cache.values))
    plan = plan_plain_attention(
        query_lengths=step.query_lengths,
        key_lengths=step.key_lengths,
        block_tables=step.block_tables,
        block_size=keys.shape[1],
        dtype=torch.float32,
    )
    return plain_paged_attention(step.query.float(), keys, values, plan)
