"""Attention and rotary embedding in native code, for bfloat16 and float32 on the CPU.

The reference implementations are `glimpse.engine.layers.attention` and `glimpse.engine.layers.rotary`. At one
instruction set level, a token's result is bit-identical for any batch, prompt chunks and number of threads.
"""

from ctypes import CDLL, byref
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.layers.rotary import Rotation
from glimpse.engine.native.library import DType, Level, Norm, load_library
from glimpse.engine.tensors.kv_cache import LayerCache
from glimpse.engine.tensors.paged_plan import PagedPlan

MAX_HEAD_DIM = 256
BLOCK_SIZES = (32, 64, 96, 128)

_LANES = 16


def supports_head(head_dim: int) -> bool:
    """Returns whether `packed_attention` supports this head size. Its pairs are rotated, so it is even."""
    return head_dim % 2 == 0 and 0 < head_dim <= MAX_HEAD_DIM


def supports(*, head_dim: int, block_size: int) -> bool:
    """Returns whether `paged_attention` supports these sizes. AMX requires multiples of 32, AVX-512 multiples of 16."""
    return head_dim % _LANES == 0 and supports_head(head_dim) and block_size in BLOCK_SIZES


def rotate_and_store(
    qkv: Tensor,
    rotation: Rotation,
    cache: LayerCache,
    slots: Tensor,
    query_norm: Norm | None = None,
    key_norm: Norm | None = None,
) -> Tensor:
    """Normalizes heads, applies rotary embedding to queries and keys, and writes keys and values to the KV cache.

    Args:
        qkv: [tokens, (heads + 2 · kv_heads) · head_dim]: queries, keys, values. Overwritten where heads have norms.
        rotation: rotation of the tokens.
        cache: KV cache of the layer, allocated on the CPU.
        slots: int64 [tokens]: block · block_size + offset in the block, each at most once.
        query_norm: RMSNorm of query heads, before the rotation.
        key_norm: RMSNorm of key heads, before the rotation.

    Returns:
        The rotated queries, [tokens, heads, head_dim].
    """
    _, block_size, num_kv_heads, head_dim = cache.keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    query = qkv.new_empty(len(qkv), num_heads, head_dim)
    _kernels().glimpse_rotate_and_store(
        DType.of(qkv.dtype),
        qkv.data_ptr(),
        query_norm and byref(query_norm),
        key_norm and byref(key_norm),
        rotation.cos.data_ptr(),
        rotation.sin.data_ptr(),
        slots.data_ptr(),
        len(qkv),
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        query.data_ptr(),
    )
    return query


def rotate(x: Tensor, rotation: Rotation, *, num_heads: int) -> None:
    """Rotates the first heads of each row in place.

    Args:
        x: [tokens, heads, head_dim], contiguous.
        rotation: rotation of the tokens.
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


def paged_attention(query: Tensor, cache: LayerCache, plan: PagedPlan, *, level: Level) -> Tensor:
    """Computes causal attention of each new token to its sequence's tokens up to and including itself.

    Args:
        query: [tokens, heads, head_dim]; consecutive query heads share a key-value head.
        cache: KV cache of the layer, allocated on the CPU, including the new tokens' keys and values.
        plan: attention plan of the step.
        level: instruction set level.

    Returns:
        [tokens, heads, head_dim]
    """
    _, block_size, num_kv_heads, head_dim = cache.keys.shape
    output = torch.empty_like(query)
    _kernels().glimpse_paged_attention(
        level,
        DType.of(query.dtype),
        query.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        plan.block_tables.data_ptr(),
        plan.query_starts.data_ptr(),
        plan.key_lengths.data_ptr(),
        len(plan.key_lengths),
        plan.block_tables.shape[1],
        query.shape[1],
        num_kv_heads,
        head_dim,
        block_size,
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
        level: instruction set level.

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
