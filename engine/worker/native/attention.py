"""Attention and rotary embedding in native code, for bfloat16 and float32 on the CPU.

The reference implementations are `engine/worker/layers/attention.py` and `engine/worker/layers/rotary.py`. At one
instruction set level, a token's result is bit-identical for any batch, prompt chunks and number of threads.
"""

from collections.abc import Sequence
from ctypes import CDLL, byref
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.native.library import DType, Level, Norm, load_library
from glimpse.engine.worker.tensors import paged_plan
from glimpse.engine.worker.tensors.kv_cache import LayerCache
from glimpse.engine.worker.tensors.paged_plan import PagedPlan

MAX_HEAD_DIM = 512
BLOCK_SIZES = (32, 64, 96, 128)

_LANES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedPlan:
    """A step's sequences, and which of their tokens the new ones attend to."""

    sequences: PagedPlan
    window: int | None
    """How many tokens each token attends to, itself included; None for all up to itself."""
    limits: Tensor | None
    """int32 [tokens]: how many tokens of its sequence each new token attends to, those before its window included; None
    for those up to itself."""


def plan_attention(
    *,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    block_tables: Tensor,
    window: int | None = None,
    bidirectional: Sequence[tuple[int, int]] = (),
) -> MaskedPlan:
    """Returns the plan that layers of a step share.

    Args:
        query_lengths: number of new tokens of each sequence, in packed order.
        key_lengths: number of tokens of each sequence so far, including the new ones.
        block_tables: [sequences, blocks], padded with any valid block.
        bidirectional: (first row, number of rows) of new tokens that attend to each other, also to later ones; those of
            one sequence each.
    """
    sequences = paged_plan.plan_attention(
        query_lengths=query_lengths, key_lengths=key_lengths, block_tables=block_tables
    )
    limits = _limits(query_lengths, key_lengths, bidirectional) if bidirectional else None
    return MaskedPlan(sequences=sequences, window=window, limits=limits)


def _limits(
    query_lengths: Sequence[int], key_lengths: Sequence[int], bidirectional: Sequence[tuple[int, int]]
) -> Tensor:
    own = zip(query_lengths, key_lengths, strict=True)
    limits = torch.cat([torch.arange(keys - queries + 1, keys + 1, dtype=torch.int32) for queries, keys in own])
    for first, count in bidirectional:
        limits[first : first + count] = int(limits[first + count - 1])
    return limits


def supports_head(head_dim: int) -> bool:
    """Returns whether `packed_attention` supports this head size. Its pairs are rotated, so it is even."""
    return head_dim % 2 == 0 and 0 < head_dim <= MAX_HEAD_DIM


def supports(*, head_dim: int, block_size: int) -> bool:
    """Returns whether `paged_attention` supports these sizes. AMX requires multiples of 32, AVX-512 multiples of 16."""
    return head_dim % _LANES == 0 and supports_head(head_dim) and block_size in BLOCK_SIZES


def rotate_and_store(
    qkv: Tensor,
    rotation: Rotation,
    cache: LayerCache | None,
    slots: Tensor,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
    value_norm: Norm | None = None,
) -> Tensor:
    """Normalizes heads, applies rotary embedding to queries and keys, and writes keys and values to the KV cache.

    Args:
        qkv: [tokens, (heads + 2 · kv_heads) · head_dim]: queries, keys, values. Overwritten where heads have norms.
        cache: KV cache of the layer, allocated on the CPU; None if `qkv` has queries alone.
        slots: int64 [tokens]: block · block_size + offset in the block, each at most once.
        query_norm: RMSNorm of query heads, before the rotation.
        key_norm: RMSNorm of key heads, before the rotation.

    Returns:
        The rotated queries, [tokens, heads, head_dim].
    """
    head_dim = 2 * rotation.cos.shape[-1]
    block_size, num_kv_heads = (1, 0) if cache is None else cache.keys.shape[1:3]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = qkv.new_empty(len(qkv), num_heads, head_dim)
    _kernels().glimpse_rotate_and_store(
        DType.of(qkv.dtype),
        qkv.data_ptr(),
        query_norm and byref(query_norm),
        key_norm and byref(key_norm),
        value_norm and byref(value_norm),
        rotation.cos.data_ptr(),
        rotation.sin.data_ptr(),
        slots.data_ptr(),
        len(qkv),
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        cache is not None and cache.is_int8,
        None if cache is None else cache.keys.data_ptr(),
        None if cache is None else cache.values.data_ptr(),
        query.data_ptr(),
    )
    return query


def rotate(x: Tensor, rotation: Rotation, *, num_heads: int) -> None:
    """Rotates the first heads of each row in place.

    Args:
        x: [tokens, heads, head_dim], contiguous.
        num_heads: number of heads to rotate; others are unchanged.
    """
    num_tokens, row_heads, head_dim = x.shape
    _kernels().glimpse_rotate(
        DType.of(x.dtype),
        x.data_ptr(),
        rotation.cos.data_ptr(),
        rotation.sin.data_ptr(),
        num_tokens,
        num_heads,
        row_heads,
        head_dim,
    )


def paged_attention(query: Tensor, cache: LayerCache, plan: MaskedPlan, *, level: Level) -> Tensor:
    """Computes causal attention of each new token to its sequence's tokens up to and including itself, or as the plan
    says.

    Args:
        query: [tokens, heads, head_dim]; consecutive query heads share a key-value head.
        cache: KV cache of the layer, allocated on the CPU, including the new tokens' keys and values.

    Returns:
        [tokens, heads, head_dim]
    """
    _, block_size, num_kv_heads, _ = cache.keys.shape
    output, sequences = torch.empty_like(query), plan.sequences
    _kernels().glimpse_paged_attention(
        level,
        DType.of(query.dtype),
        query.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        sequences.block_tables.data_ptr(),
        sequences.query_starts.data_ptr(),
        sequences.key_lengths.data_ptr(),
        None if plan.limits is None else plan.limits.data_ptr(),
        len(sequences.key_lengths),
        sequences.block_tables.shape[1],
        query.shape[1],
        num_kv_heads,
        cache.head_dim,
        block_size,
        plan.window or 0,
        cache.is_int8,
        output.data_ptr(),
    )
    return output


def packed_attention(query: Tensor, key: Tensor, value: Tensor, segment_starts: Tensor, *, level: Level) -> Tensor:
    """Computes bidirectional attention of each patch to all patches of its segment.

    Args:
        query: [patches, heads, head_dim] with contiguous heads; may be a view into wider rows. Heads whose size is no
            multiple of 16, such as the 72 of Qwen3-VL's encoder, are padded with zeros in a copy.
        key: like `query`.
        value: like `query`.
        segment_starts: int32 [segments + 1]: first patch of each segment, then the number of patches.

    Returns:
        [patches, heads, head_dim]
    """
    own_dim = query.shape[2]
    if padding := -own_dim % _LANES:
        query, key, value = (functional.pad(each, (0, padding)) for each in (query, key, value))
    _, num_heads, head_dim = query.shape
    assert all(tensor.stride()[1:] == (head_dim, 1) for tensor in (query, key, value))
    output = query.new_empty(query.shape)
    _kernels().glimpse_packed_attention(
        level,
        DType.of(query.dtype),
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        query.stride(0),
        key.stride(0),
        value.stride(0),
        segment_starts.data_ptr(),
        len(segment_starts) - 1,
        num_heads,
        head_dim,
        own_dim,
        output.data_ptr(),
    )
    return output[..., :own_dim]


@cache
def _kernels() -> CDLL:
    return load_library()
