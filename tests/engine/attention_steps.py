"""Attention steps for tests of kernels: sequences with filled KV caches, and the reference results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glimpse.engine.worker.layers.attention import paged_attention, plan_attention
from glimpse.engine.worker.tensors.kv_cache import CacheShape, LayerCache, dequantize

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Sequences with the queries of their new tokens."""

    query: Tensor
    """[tokens, heads, head_dim]"""
    cache: LayerCache
    """Slots without a token contain NaN."""
    block_tables: Tensor
    query_lengths: Sequence[int]
    key_lengths: Sequence[int]

    def part(self, sequence: int, first: int = 0, last: int | None = None) -> "Step":
        """Returns a step of some tokens of one sequence as its last ones, with the shortest possible block table."""
        row, length = sum(self.query_lengths[:sequence]), self.query_lengths[sequence]
        last = length if last is None else last
        num_keys = self.key_lengths[sequence] - length + last
        num_blocks = -(-num_keys // self.cache.keys.shape[1])
        return Step(
            query=self.query[row + first : row + last].contiguous(),
            cache=self.cache,
            block_tables=self.block_tables[sequence : sequence + 1, :num_blocks],
            query_lengths=[last - first],
            key_lengths=[num_keys],
        )


def make_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device = _CPU,
    *,
    is_int8: bool = False,
) -> LayerCache:
    return (
        CacheShape(num_kv_heads=num_kv_heads, head_dim=head_dim, is_int8=is_int8)
        .allocate(num_blocks, block_size, dtype, device)
        .layer(0)
    )


def make_step(
    lengths: Sequence[tuple[int, int]],
    *,
    head_dim: int = 64,
    num_kv_heads: int = 2,
    num_queries_per_kv: int = 6,
    block_size: int = 16,
    query_scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    seed: int = 0,
    is_int8: bool = False,
) -> Step:
    """Returns a step of sequences with these numbers of new tokens and of tokens cached before them."""
    generator = torch.Generator().manual_seed(seed)
    key_lengths = [new + cached for new, cached in lengths]
    table_width = -(-max(key_lengths) // block_size)
    tables = torch.randperm(len(lengths) * table_width + 2, generator=generator)[2:].view(len(lengths), -1)
    cache = make_cache(
        len(lengths) * table_width + 2, block_size, num_kv_heads, head_dim, dtype, device, is_int8=is_int8
    )
    for each in cache:
        each.fill_(-1 if is_int8 else math.nan)  # also NaN, as bytes of a scale
    for table, num_keys in zip(tables, key_lengths, strict=True):
        index = torch.arange(num_keys)
        key, value = torch.randn(2, num_keys, num_kv_heads, head_dim, generator=generator).to(device, dtype)
        cache.write((table[index // block_size] * block_size + index % block_size).to(device), key, value)
    num_tokens = sum(new for new, _ in lengths)
    query = query_scale * torch.randn(num_tokens, num_kv_heads * num_queries_per_kv, head_dim, generator=generator)
    return Step(
        query=query.to(device, dtype),
        cache=cache,
        block_tables=tables.to(device),
        query_lengths=[new for new, _ in lengths],
        key_lengths=key_lengths,
    )


def plain(step: Step, window: int | None = None, bidirectional: Sequence[tuple[int, int]] = ()) -> Tensor:
    """Returns the result of the reference implementation in float32."""
    keys, values = (dequantize(each, torch.float32).float() for each in step.cache)
    plan = plan_attention(
        query_lengths=step.query_lengths,
        key_lengths=step.key_lengths,
        block_tables=step.block_tables,
        block_size=keys.shape[1],
        dtype=torch.float32,
        window=window,
        bidirectional=bidirectional,
    )
    return paged_attention(step.query.float(), LayerCache(keys, values), plan)
