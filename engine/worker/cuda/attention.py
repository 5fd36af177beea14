"""Attention of packed tokens over a paged KV cache, on CUDA. Launches the Triton kernels.

`layers/attention.py` is the reference implementation. The launches depend on the shapes of tensors only, so
a CUDA graph of a decode step can be replayed with other lengths. The result of a decode is bit-identical for any other
sequences in the batch.
"""
# pyright: reportCallIssue=false
# (a launch takes options in addition to the kernel's arguments)

from typing import Any

import torch
import triton
from torch import Tensor

from glimpse.engine.worker.cuda.attention_kernels import attend_chunks, attend_split, merge_splits
from glimpse.engine.worker.tensors.kv_cache import LayerCache
from glimpse.engine.worker.tensors.paged_plan import PagedPlan

MAX_SPLITS = 32
"""Maximum number of splits of a sequence's keys, which are computed in parallel."""
MIN_SPLIT_KEYS = 128
"""The number of keys in a split is a multiple of this: smaller splits do not repay the cost of merging."""
LARGE_TILES_DIMS = 128
"""Maximum number of dimensions for large tiles, of numbers of 2 bytes: larger ones do not fit into registers."""
LOG2_E = 1.4426950408889634
"""Kernels compute powers of 2, for which a GPU has an instruction."""


def paged_attention(query: Tensor, cache: LayerCache, plan: PagedPlan) -> Tensor:
    """Computes causal attention of each new token to its sequence's tokens up to and including itself.

    Decodes are computed in splits of their keys, longer chunks in tiles of their tokens.

    Args:
        query: [tokens, heads, head_dim], contiguous; consecutive query heads share a key-value head.
        cache: KV cache of the layer, including the new tokens' keys and values.

    Returns:
        [tokens, heads, head_dim]
    """
    output = torch.empty_like(query)
    _attend_decodes(query, cache, plan, output)
    if plan.max_query_length > 1:
        _attend_chunks(query, cache, plan, output)
    return output


def _has_large_tiles(query: Tensor) -> bool:
    # float32 spills even where its keys have as many bytes: "ieee" products are computed without tensor cores.
    return query.itemsize <= 2 and query.shape[2] <= LARGE_TILES_DIMS


def _tile_keys(query: Tensor) -> int:
    if _has_large_tiles(query):
        return 64
    # 32 keys of 256 dimensions in float32 exceed the 99 KiB of shared memory that GPUs like an L4 or RTX 4090 have.
    return 32 if query.shape[2] * query.itemsize <= 512 else 16


def _arguments(query: Tensor, cache: LayerCache, plan: PagedPlan) -> dict[str, Any]:
    """Returns the arguments that `attend_split` and `attend_chunks` have in common."""
    _, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = cache.keys.shape
    return {
        "query": query,
        "keys": cache.keys,
        "values": cache.values,
        "block_tables": plan.block_tables,
        "query_starts": plan.query_starts,
        "key_lengths": plan.key_lengths,
        "table_stride": plan.block_tables.shape[1],
        "key_strides": cache.keys.stride(),
        "value_strides": cache.values.stride(),
        "scale": LOG2_E * head_dim**-0.5,
        "num_queries_per_kv": num_heads // num_kv_heads,
        "head_dim": head_dim,
        "tile_dims": triton.next_power_of_2(head_dim),
        "block_size": block_size,
        "tile_keys": _tile_keys(query),
        "num_stages": 2,
    }


def _attend_decodes(query: Tensor, cache: LayerCache, plan: PagedPlan, output: Tensor) -> None:
    _, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = cache.keys.shape
    num_sequences, table_width = plan.block_tables.shape
    partial = query.new_empty((num_sequences, num_heads, MAX_SPLITS, head_dim), dtype=torch.float32)
    weight_logs = query.new_empty((num_sequences, num_heads, MAX_SPLITS), dtype=torch.float32)
    # From the table's width, not from lengths, because a replayed graph can have any lengths that fit.
    num_splits = min(MAX_SPLITS, -(-table_width * block_size // MIN_SPLIT_KEYS))
    attend_split[(num_sequences, num_kv_heads, num_splits)](
        **_arguments(query, cache, plan),
        partial=partial,
        weight_logs=weight_logs,
        tile_rows=max(16, triton.next_power_of_2(num_heads // num_kv_heads)),
        max_splits=MAX_SPLITS,
        min_keys=MIN_SPLIT_KEYS,
        num_warps=4 if _has_large_tiles(query) else 8,
    )
    merge_splits[(num_sequences, num_heads)](
        partial,
        weight_logs,
        plan.query_starts,
        plan.key_lengths,
        output,
        head_dim=head_dim,
        tile_dims=triton.next_power_of_2(head_dim),
        max_splits=MAX_SPLITS,
        min_keys=MIN_SPLIT_KEYS,
        num_warps=4,
    )


def _attend_chunks(query: Tensor, cache: LayerCache, plan: PagedPlan, output: Tensor) -> None:
    num_tokens, num_heads, _ = query.shape
    num_sequences, num_kv_heads = len(plan.block_tables), cache.keys.shape[2]
    num_queries_per_kv = num_heads // num_kv_heads
    rows = max(128 if _has_large_tiles(query) else 32, triton.next_power_of_2(num_queries_per_kv))
    # Each sequence has at most one tile that is not full; see `sequence_of`.
    num_tiles = num_tokens // (rows // num_queries_per_kv) + num_sequences
    attend_chunks[(num_tiles, num_kv_heads)](
        **_arguments(query, cache, plan), output=output, num_sequences=num_sequences, tile_rows=rows, num_warps=8
    )
