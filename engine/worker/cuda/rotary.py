"""Rotary embedding on CUDA, fused with the write to the KV cache.

The reference implementations are `glimpse.engine.worker.layers.rotary.rotate` and `LayerCache.write`.
"""
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false, reportGeneralTypeIssues=false
# (kernels are written in Triton's language, whose values have no Python types;
# a launch takes options of its own)

import triton
import triton.language as tl
from torch import Tensor

from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.tensors.kv_cache import LEAST_MAGNITUDE, LayerCache

HEADS_AT_ONCE = 8
"""Heads per program: enough work for a program, and few enough for one token to use several multiprocessors."""


def rotate_and_store(qkv: Tensor, rotation: Rotation, cache: LayerCache, slots: Tensor) -> Tensor:
    """Applies rotary embedding to queries and keys, and writes keys and values to the KV cache.

    Args:
        qkv: [tokens, (heads + 2 · kv_heads) · head_dim], contiguous: queries, keys, values.
        slots: int64 [tokens]: block · block_size + offset in the block, each at most once; tokens with a negative slot
            are not written.

    Returns:
        The rotated queries, [tokens, heads, head_dim].
    """
    block_size, num_kv_heads, head_dim = *cache.keys.shape[1:3], cache.head_dim
    num_tokens = qkv.shape[0]
    num_all = qkv.shape[1] // head_dim
    query = qkv.new_empty((num_tokens, num_all - 2 * num_kv_heads, head_dim))
    _rotate_and_store[(num_tokens, triton.cdiv(num_all, HEADS_AT_ONCE))](
        qkv,
        rotation.cos,
        rotation.sin,
        slots,
        query,
        cache.keys,
        cache.values,
        cache.keys.stride(),
        cache.values.stride(),
        num_heads=num_all - 2 * num_kv_heads,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        tile_heads=HEADS_AT_ONCE,
        half=head_dim // 2,
        tile_dims=triton.next_power_of_2(head_dim // 2),
        least=LEAST_MAGNITUDE,
        num_warps=4,
    )
    return query


def rotate(x: Tensor, rotation: Rotation, *, num_heads: int) -> None:
    """Rotates the first `num_heads` heads of [tokens, heads, head_dim], contiguous, in place."""
    num_tokens, num_all, head_dim = x.shape
    _rotate[(num_tokens, triton.cdiv(num_heads, HEADS_AT_ONCE))](
        x,
        rotation.cos,
        rotation.sin,
        num_all=num_all,
        num_heads=num_heads,
        tile_heads=HEADS_AT_ONCE,
        half=head_dim // 2,
        tile_dims=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
    )


@triton.jit
def _rotate_pairs(first, second, cos, sin, angles, used):
    """Rotates pairs of a tile's heads by the angles of its token, in float32 like the reference implementation."""
    c = tl.load(cos + angles, mask=used, other=0.0)[None, :]
    s = tl.load(sin + angles, mask=used, other=0.0)[None, :]
    first, second = first.to(tl.float32), second.to(tl.float32)
    return first * c - second * s, second * c + first * s


@triton.jit
def _store_head(out, first, second, stride, half: tl.constexpr, dims, mask, least: tl.constexpr):
    """Stores the halves of a tile's heads, [heads, dims], at `out`, [heads, 1]; in a cache of 8 bits as `quantize`
    rounds them."""
    if out.dtype.element_ty == tl.int8:
        first, second = first.to(tl.float32), second.to(tl.float32)
        largest = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1, keep_dims=True)
        factor = 127.0 / tl.maximum(largest, least)
        # Adding and subtracting 1.5 · 2^23 rounds to nearest, ties to even.
        first, second = first * factor + 12582912.0 - 12582912.0, second * factor + 12582912.0 - 12582912.0
        bits = (largest / 127.0).to(tl.uint32, bitcast=True)
        has_head = tl.max(mask.to(tl.int32), axis=1, keep_dims=True) > 0
        for index in tl.static_range(4):
            byte = (bits >> (8 * index)).to(tl.uint8).to(tl.int8, bitcast=True)
            tl.store(out + (2 * half + index) * stride, byte, mask=has_head)
    out += dims[None, :] * stride
    tl.store(out, first.to(out.dtype.element_ty), mask=mask)
    tl.store(out + half * stride, second.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_and_store(
    qkv,
    cos,  # float32 [tokens, half]
    sin,
    slots,
    query,
    keys,
    values,
    key_strides,  # of block, slot, head and dimension
    value_strides,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    block_size: tl.constexpr,
    tile_heads: tl.constexpr,
    half: tl.constexpr,
    tile_dims: tl.constexpr,
    least: tl.constexpr,
):
    """Rotates and stores a tile of one token's query, key and value heads: [tokens, tiles of heads] programs."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
    dims = tl.arange(0, tile_dims)
    used = (heads < num_heads + 2 * num_kv_heads)[:, None] & (dims < half)[None, :]
    place = (token * (num_heads + 2 * num_kv_heads) + heads)[:, None] * (2 * half) + dims[None, :]
    first = tl.load(qkv + place, mask=used, other=0.0)
    second = tl.load(qkv + place + half, mask=used, other=0.0)
    rotated_first, rotated_second = _rotate_pairs(first, second, cos, sin, token * half + dims, dims < half)

    is_query = used & (heads < num_heads)[:, None]
    out = query + (token * num_heads + heads)[:, None] * (2 * half) + dims[None, :]
    tl.store(out, rotated_first.to(first.dtype), mask=is_query)
    tl.store(out + half, rotated_second.to(first.dtype), mask=is_query)

    slot = tl.load(slots + token)
    block, within = slot // block_size, slot % block_size
    is_key = used & (heads >= num_heads)[:, None] & (heads < num_heads + num_kv_heads)[:, None] & (slot >= 0)
    out = keys + block * key_strides[0] + within * key_strides[1] + (heads - num_heads)[:, None] * key_strides[2]
    rotated_first, rotated_second = rotated_first.to(first.dtype), rotated_second.to(first.dtype)
    _store_head(out, rotated_first, rotated_second, key_strides[3], half, dims, is_key, least)

    is_value = used & (heads >= num_heads + num_kv_heads)[:, None] & (slot >= 0)
    out = values + block * value_strides[0] + within * value_strides[1]
    out += (heads - num_heads - num_kv_heads)[:, None] * value_strides[2]
    _store_head(out, first, second, value_strides[3], half, dims, is_value, least)


@triton.jit
def _rotate(
    x,
    cos,  # float32 [tokens, half]
    sin,
    num_all: tl.constexpr,
    num_heads: tl.constexpr,
    tile_heads: tl.constexpr,
    half: tl.constexpr,
    tile_dims: tl.constexpr,
):
    """Rotates a tile of one token's heads: [tokens, tiles of heads] programs."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
    dims = tl.arange(0, tile_dims)
    used = (heads < num_heads)[:, None] & (dims < half)[None, :]
    place = x + (token * num_all + heads)[:, None] * (2 * half) + dims[None, :]
    first = tl.load(place, mask=used, other=0.0)
    second = tl.load(place + half, mask=used, other=0.0)
    rotated_first, rotated_second = _rotate_pairs(first, second, cos, sin, token * half + dims, dims < half)
    tl.store(place, rotated_first.to(first.dtype), mask=used)
    tl.store(place + half, rotated_second.to(first.dtype), mask=used)
