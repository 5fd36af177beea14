"""Triton kernels for attention over the paged KV cache, launched by `glimpse.engine.worker.cuda.attention`.

Query heads that share a key-value head are rows of one product, which reads the keys once. A tile of keys can span
blocks of the cache: the block of each key is looked up. Decodes (`attend_split`) and longer chunks (`attend_chunks`)
have separate kernels; both are launched over the whole batch, and each skips the sequences of the other.
"""
# pyright: basic, reportPrivateImportUsage=false
# (kernels are written in Triton's language, whose values have no Python types)

import triton
import triton.language as tl

PLAN = ["block_tables", "query_starts", "key_lengths"]
"""Tensors of a step's plan are views of any alignment, for which no kernels are specialized."""


@triton.jit
def split_length(num_keys, max_splits: tl.constexpr, min_keys: tl.constexpr):
    """Returns the keys per split, from the sequence's length only, so that results do not depend on the batch."""
    least = tl.cdiv(num_keys, max_splits)
    return tl.cdiv(least, min_keys) * min_keys


@triton.jit
def load_heads(heads, offsets, dims, dim_stride, is_key, head_dim: tl.constexpr, to: tl.constexpr):
    """Loads the heads of keys or values, [keys, dims]. Those of 8 bits end with the bytes of their scales."""
    readable = is_key[:, None] & (dims < head_dim)[None, :]
    tile = tl.load(heads + offsets[:, None] + (dims * dim_stride)[None, :], mask=readable, other=0)
    if heads.dtype.element_ty == tl.int8:
        bits = tl.zeros([offsets.shape[0]], tl.uint32)
        for index in tl.static_range(4):
            byte = tl.load(heads + offsets + (head_dim + index) * dim_stride, mask=is_key, other=0)
            bits |= byte.to(tl.uint8, bitcast=True).to(tl.uint32) << (8 * index)
        tile = (tile.to(tl.float32) * bits.to(tl.float32, bitcast=True)[:, None]).to(to)
    return tile


@triton.jit
def attend_keys(
    query,  # [rows, tile_dims]
    last_key,  # [1 or rows]: index of the last key that a row attends to
    start,
    end,
    sequence,
    kv_head,
    pages,  # block_tables, table_stride, keys, values, key_strides, value_strides of the kernel
    scale,
    head_dim: tl.constexpr,
    tile_dims: tl.constexpr,
    block_size: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """Attention of a tile of queries to keys [start, end) of a sequence, with online softmax (arXiv 1805.02867).

    Returns:
        The maximum of the scores in powers of 2, float32 [rows]; the sum of the weights, float32 [rows]; the sum of the
        weighted values, float32 [rows, tile_dims].
    """
    block_tables, table_stride, keys, values, key_strides, value_strides = pages
    table = block_tables + sequence * table_stride
    keys += kv_head * key_strides[2]
    values += kv_head * value_strides[2]
    maximum = tl.full([query.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    output = tl.zeros([query.shape[0], tile_dims], tl.float32)
    dims = tl.arange(0, tile_dims)
    for first in range(start, end, tile_keys):
        index = first + tl.arange(0, tile_keys)
        # 64 bits: a large cache has more elements than 32 bits can address.
        block = tl.load(table + index // block_size, mask=index < end, other=0).to(tl.int64)
        slot = index % block_size
        key_offsets = block * key_strides[0] + slot * key_strides[1]
        # [tile_keys, tile_dims]
        key = load_heads(keys, key_offsets, dims, key_strides[3], index < end, head_dim, query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(index[None, :] > last_key[:, None], float("-inf"), scores)  # [rows, tile_keys]
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        value_offsets = block * value_strides[0] + slot * value_strides[1]
        value = load_heads(values, value_offsets, dims, value_strides[3], index < end, head_dim, query.dtype)
        output = output * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * rescale + tl.sum(weights, axis=1)
        maximum = new_maximum
    return maximum, total, output


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=PLAN)
def attend_split(
    query,  # [tokens, heads, head_dim]
    keys,
    values,
    block_tables,
    query_starts,
    key_lengths,
    partial,  # float32 [sequences, heads, max_splits, head_dim]
    weight_logs,  # float32 [sequences, heads, max_splits]: log2 of the sums of weights
    table_stride,
    key_strides,  # of block, slot, head and dimension
    value_strides,
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
    """Attention of a decode to one split of its keys: [sequences, key-value heads, splits] programs."""
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
    maximum, total, output = attend_keys(
        tile,
        tl.full([1], end - 1, tl.int32),
        start,
        end,
        sequence,
        kv_head,
        (block_tables, table_stride, keys, values, key_strides, value_strides),
        scale,
        head_dim,
        tile_dims,
        block_size,
        tile_keys,
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
    """Merges the partial results of `attend_split`: [sequences, heads] programs."""
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
    """Returns the sequence of a tile, where sequence i begins with tile query_starts[i] // tile_tokens + i.

    So each sequence has a tile for each tile_tokens of its tokens, for any offset, and at most one more.
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
    key_strides,  # of block, slot, head and dimension
    value_strides,
    scale,
    num_queries_per_kv: tl.constexpr,
    tile_rows: tl.constexpr,
    head_dim: tl.constexpr,
    tile_dims: tl.constexpr,
    block_size: tl.constexpr,
    tile_keys: tl.constexpr,
):
    """Causal attention of a tile of a sequence's new tokens: [tiles, key-value heads] programs.

    A row of a tile is one query head of the key-value head, of one of tile_rows // num_queries_per_kv tokens.
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
    head = kv_head * num_queries_per_kv + rows % num_queries_per_kv
    place = ((first_row + tokens) * num_heads + head)[:, None] * head_dim + dims[None, :]
    used = ((rows < tile_tokens * num_queries_per_kv) & (tokens < num_queries))[:, None] & (dims < head_dim)[None, :]
    queries = tl.load(query + place, mask=used, other=0.0)
    end = tl.minimum(num_keys - num_queries + first_token + tile_tokens, num_keys)
    _, total, attended = attend_keys(
        queries,
        position,
        0,
        end,
        sequence,
        kv_head,
        (block_tables, table_stride, keys, values, key_strides, value_strides),
        scale,
        head_dim,
        tile_dims,
        block_size,
        tile_keys,
    )
    tl.store(output + place, (attended / total[:, None]).to(output.dtype.element_ty), mask=used)
