"""Attention over the paged cache as Triton kernels. Knows pointers and tiles; `attention` says how they are launched.

The heads that share a key-value head are rows of one product, which reads the keys once for all of them. A tile of keys
need not be a block of the cache: each key's block is looked up. Both kernels are launched over a whole batch, and each
passes over the sequences that are the other's.
"""
# pyright: basic, reportPrivateImportUsage=false
# (what stands in a kernel is Triton's language, whose values have no types in Python)

import triton
import triton.language as tl

PLAN = ["block_tables", "query_starts", "key_lengths"]
"""Parts of a step's plan are views that begin anywhere: no kernel is to be compiled for each way of doing so."""


@triton.jit
def split_length(num_keys, max_splits: tl.constexpr, min_keys: tl.constexpr):
    """Keys that one program takes of a sequence: by its own length alone, so that no batch changes a result's bits."""
    least = tl.cdiv(num_keys, max_splits)
    return tl.cdiv(least, min_keys) * min_keys


@triton.jit
def add_keys(
    query,  # [rows, tile_dims]
    maximum,  # float32 [rows]: of the scores so far, in powers of 2
    total,  # float32 [rows]: of the weights so far
    output,  # float32 [rows, tile_dims]: of the weighted values so far
    index,  # [keys]: their places in the sequence
    hidden,  # [1 or rows, keys]: what a row may not see
    present,  # [keys]: what there is to read
    table,
    keys,
    values,
    key_strides,
    value_strides,
    scale,
    head_dim: tl.constexpr,
    tile_dims: tl.constexpr,
    block_size: tl.constexpr,
):
    """One tile of keys into the running softmax (arXiv 1805.02867) and its output."""
    dims = tl.arange(0, tile_dims)
    # 64 bits: a large cache has more values than 32 bits count.
    block = tl.load(table + index // block_size, mask=present, other=0).to(tl.int64)
    place = index % block_size
    readable = present[:, None] & (dims < head_dim)[None, :]
    key_places = (block * key_strides[0] + place * key_strides[1])[:, None] + (dims * key_strides[2])[None, :]
    key = tl.load(keys + key_places, mask=readable, other=0.0)  # [keys, tile_dims]
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where(hidden, float("-inf"), scores)  # [rows, keys]
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    value_places = (block * value_strides[0] + place * value_strides[1])[:, None] + (dims * value_strides[2])[None, :]
    value = tl.load(values + value_places, mask=readable, other=0.0)
    output = output * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return new_maximum, total * shrink + tl.sum(weights, axis=1), output


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=PLAN)
def attend_split(
    query,  # [tokens, heads, head_dim]
    keys,
    values,
    block_tables,
    query_starts,
    key_lengths,
    partial,  # float32 [sequences, heads, max_splits, head_dim]
    weight_logs,  # float32 [sequences, heads, max_splits]: logarithms to base 2 of the sums of weights
    table_stride,
    key_block_stride,
    key_place_stride,
    key_head_stride,
    key_dim_stride,
    value_block_stride,
    value_place_stride,
    value_head_stride,
    value_dim_stride,
    scale,
    num_queries_per_kv: tl.constexpr,
    tile_rows: tl.constexpr,
    head_dim: tl.constexpr,
    tile_dims: tl.constexpr,
    block_size: tl.constexpr,
    tile_keys: tl.constexpr,
    max_splits: tl.constexpr,
    min_keys: tl.constexpr,
):
    """A sequence's only new token over a part of its keys: [sequences, key-value heads, splits] programs."""
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(1) * num_queries_per_kv
    token = tl.load(query_starts + sequence)
    num_keys = tl.load(key_lengths + sequence)
    length = split_length(num_keys, max_splits, min_keys)
    start = split * length
    if (tl.load(query_starts + sequence + 1) - token != 1) | (start >= num_keys):
        return
    end = tl.minimum(start + length, num_keys)
    rows = tl.arange(0, tile_rows)
    dims = tl.arange(0, tile_dims)
    heads = kv_head * num_queries_per_kv + rows
    used = (rows < num_queries_per_kv)[:, None] & (dims < head_dim)[None, :]
    tile = tl.load(query + (token * num_heads + heads)[:, None] * head_dim + dims[None, :], mask=used, other=0.0)
    maximum = tl.full([tile_rows], float("-inf"), tl.float32)
    total = tl.zeros([tile_rows], tl.float32)
    output = tl.zeros([tile_rows, tile_dims], tl.float32)
    for first in range(start, end, tile_keys):
        index = first + tl.arange(0, tile_keys)
        maximum, total, output = add_keys(
            tile,
            maximum,
            total,
            output,
            index,
            (index >= end)[None, :],
            index < end,
            block_tables + sequence * table_stride,
            keys + kv_head * key_head_stride,
            values + kv_head * value_head_stride,
            (key_block_stride, key_place_stride, key_dim_stride),
            (value_block_stride, value_place_stride, value_dim_stride),
            scale,
            head_dim,
            tile_dims,
            block_size,
        )
    place = (sequence * num_heads + heads) * max_splits + split
    tl.store(partial + place[:, None] * head_dim + dims[None, :], output / total[:, None], mask=used)
    tl.store(weight_logs + place, maximum + tl.log2(total), mask=rows < num_queries_per_kv)


@triton.jit(do_not_specialize_on_alignment=PLAN[1:])
def merge_splits(
    partial,
    weight_logs,
    query_starts,
    key_lengths,
    output,  # [tokens, heads, head_dim]
    head_dim: tl.constexpr,
    tile_dims: tl.constexpr,
    max_splits: tl.constexpr,
    min_keys: tl.constexpr,
):
    """What `attend_split` left, weighed against each other: [sequences, heads] programs."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - token != 1:
        return
    num_keys = tl.load(key_lengths + sequence)
    splits = tl.arange(0, max_splits)
    used = splits * split_length(num_keys, max_splits, min_keys) < num_keys
    dims = tl.arange(0, tile_dims)
    place = (sequence * tl.num_programs(1) + head) * max_splits + splits
    logs = tl.load(weight_logs + place, mask=used, other=float("-inf"))
    weights = tl.exp2(logs - tl.max(logs, axis=0))
    parts = tl.load(
        partial + place[:, None] * head_dim + dims[None, :],
        mask=used[:, None] & (dims < head_dim)[None, :],
        other=0.0,
    )
    merged = tl.sum(parts * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    row = output + (token * tl.num_programs(1) + head) * head_dim
    tl.store(row + dims, merged.to(output.dtype.element_ty), mask=dims < head_dim)


@triton.jit
def sequence_of(tile, query_starts, num_sequences, tile_tokens: tl.constexpr):
    """Which sequence a tile belongs to, where sequence i begins with tile query_starts[i] // tile_tokens + i.

    So each has a tile for each tile_tokens of its tokens, wherever they stand, and perhaps one more.
    """
    found = -1
    for first in range(0, num_sequences, 64):
        candidates = first + tl.arange(0, 64)
        begins = (
            tl.load(query_starts + candidates, mask=candidates < num_sequences, other=0) // tile_tokens + candidates
        )
        found += tl.sum(((candidates < num_sequences) & (begins <= tile)).to(tl.int32), axis=0)
    return found


@triton.jit(do_not_specialize=["num_sequences", "table_stride"], do_not_specialize_on_alignment=PLAN)
def attend_chunks(
    query,  # [tokens, heads, head_dim]
    keys,
    values,
    block_tables,
    query_starts,
    key_lengths,
    output,  # [tokens, heads, head_dim]
    num_sequences,
    table_stride,
    key_block_stride,
    key_place_stride,
    key_head_stride,
    key_dim_stride,
    value_block_stride,
    value_place_stride,
    value_head_stride,
    value_dim_stride,
    scale,
    num_queries_per_kv: tl.constexpr,
    tile_rows: tl.constexpr,
    head_dim: tl.constexpr,
    tile_dims: tl.constexpr,
    block_size: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """Some of a sequence's several new tokens over all keys up to their own: [tiles, key-value heads] programs.

    A row of a tile is one of the heads that share a key-value head, of one of tile_rows // num_queries_per_kv tokens.
    """
    tile_tokens: tl.constexpr = tile_rows // num_queries_per_kv
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    num_heads = tl.num_programs(1) * num_queries_per_kv
    sequence = sequence_of(tile, query_starts, num_sequences, tile_tokens)
    first_row = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - first_row
    first_token = (tile - first_row // tile_tokens - sequence) * tile_tokens
    if (num_queries == 1) | (first_token >= num_queries):
        return
    num_keys = tl.load(key_lengths + sequence)
    rows = tl.arange(0, tile_rows)
    dims = tl.arange(0, tile_dims)
    tokens = first_token + rows // num_queries_per_kv
    position = num_keys - num_queries + tokens
    place = ((first_row + tokens) * num_heads + kv_head * num_queries_per_kv + rows % num_queries_per_kv)[
        :, None
    ] * head_dim + dims[None, :]
    used = ((rows < tile_tokens * num_queries_per_kv) & (tokens < num_queries))[:, None] & (dims < head_dim)[None, :]
    queries = tl.load(query + place, mask=used, other=0.0)
    maximum = tl.full([tile_rows], float("-inf"), tl.float32)
    total = tl.zeros([tile_rows], tl.float32)
    attended = tl.zeros([tile_rows, tile_dims], tl.float32)
    end = tl.minimum(num_keys - num_queries + first_token + tile_tokens, num_keys)
    for first in range(0, end, tile_keys):
        index = first + tl.arange(0, tile_keys)
        maximum, total, attended = add_keys(
            queries,
            maximum,
            total,
            attended,
            index,
            index[None, :] > position[:, None],
            index < end,
            block_tables + sequence * table_stride,
            keys + kv_head * key_head_stride,
            values + kv_head * value_head_stride,
            (key_block_stride, key_place_stride, key_dim_stride),
            (value_block_stride, value_place_stride, value_dim_stride),
            scale,
            head_dim,
            tile_dims,
            block_size,
        )
    tl.store(output + place, (attended / total[:, None]).to(output.dtype.element_ty), mask=used)
