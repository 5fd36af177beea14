"""Attention of packed tokens over a paged KV cache, in plain torch: the reference implementation.

`plan_attention` runs once per step and computes what all layers share; `paged_attention` runs in each layer. Other
backends implement the same two functions.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from glimpse.engine.worker.tensors.kv_cache import LayerCache, dequantize


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """Sequences of similar length with one new token each, computed as one batch."""

    rows: Tensor
    """int64 [sequences]: rows of their tokens in the packed batch."""
    blocks: Tensor
    """int64 [sequences, blocks] from the first block that is attended to, padded with blocks that are masked out."""
    mask: Tensor
    """[sequences, 1, 1, blocks · block_size], added to the scores: 0 for keys of the sequence, -inf for others."""
    hidden: tuple[Tensor, ...]
    """int64: sequences and places of the others, which may be NaN where another sequence's numbers overflowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Several new tokens of one sequence."""

    rows: slice
    """Rows of the tokens in the packed batch."""
    blocks: Tensor
    """int64 [blocks], from the first block that is attended to"""
    num_keys: int
    """Number of keys in the blocks, those of the new tokens last."""
    mask: Tensor | None
    """[new tokens, num_keys], added to the scores; None for plain causal attention, if no tokens precede the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """A step's sequences, grouped for attention."""

    decodes: tuple[Decodes, ...]
    chunks: tuple[Chunk, ...]


def plan_attention(
    *,
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    block_tables: Tensor,
    block_size: int,
    dtype: torch.dtype,
    window: int | None = None,
    bidirectional: Sequence[tuple[int, int]] = (),
) -> AttentionPlan:
    """Groups a step's sequences for attention.

    Args:
        query_lengths: number of new tokens of each sequence, in packed order.
        key_lengths: number of tokens of each sequence so far, including the new ones.
        block_tables: int64 [sequences, blocks], padded with any valid block.
        window: how many tokens each token attends to, itself included; None for all up to itself.
        bidirectional: (first row, number of rows) of new tokens that attend to each other, also to later ones; those of
            one sequence each.
    """
    groups: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    chunks: list[Chunk] = []
    row = 0
    for index, (num_queries, num_keys) in enumerate(zip(query_lengths, key_lengths, strict=True)):
        first_block = _first_block(num_queries, num_keys, block_size, window)
        num_blocks = -(-num_keys // block_size) - first_block
        if num_queries == 1:
            # Lengths within a factor of two share a group, so less than half of the gathered keys are padding.
            groups[num_blocks.bit_length()].append((index, row))
        else:
            num_read = num_keys - first_block * block_size
            rows = range(row, row + num_queries)
            runs = [(first - row, count) for first, count in bidirectional if first in rows]
            chunk = Chunk(
                rows=slice(row, row + num_queries),
                blocks=block_tables[index, first_block : first_block + num_blocks],
                num_keys=num_read,
                mask=_chunk_mask(num_queries, num_read, block_tables.device, dtype, window, runs),
            )
            chunks.append(chunk)
        row += num_queries
    decodes = tuple(_decodes(group, key_lengths, block_tables, block_size, dtype, window) for group in groups.values())
    return AttentionPlan(decodes=decodes, chunks=tuple(chunks))


def paged_attention(query: Tensor, cache: LayerCache, plan: AttentionPlan) -> Tensor:
    """Computes causal attention of each new token to its sequence's tokens up to and including itself, as planned.

    Args:
        query: [tokens, heads, head_dim]; consecutive query heads share a key-value head.
        cache: KV cache of the layer, including the new tokens' keys and values.

    Returns:
        [tokens, heads, head_dim]
    """
    output = torch.empty_like(query)
    for decodes in plan.decodes:
        output[decodes.rows] = _attend_decodes(query[decodes.rows], cache, decodes)
    for chunk in plan.chunks:
        output[chunk.rows] = _attend_chunk(query[chunk.rows], cache, chunk)
    return output


def _first_block(num_queries: int, num_keys: int, block_size: int, window: int | None) -> int:
    """Returns the index of the first block that the new tokens of a sequence attend to."""
    return 0 if window is None else max(num_keys - num_queries + 1 - window, 0) // block_size


def _chunk_mask(
    num_queries: int,
    num_keys: int,
    device: torch.device,
    dtype: torch.dtype,
    window: int | None,
    runs: Sequence[tuple[int, int]],
) -> Tensor | None:
    if not runs and num_queries == num_keys and (window is None or num_keys <= window):
        return None
    mask = torch.full((num_queries, num_keys), float("-inf"), device=device, dtype=dtype)
    num_before = num_keys - num_queries
    mask.triu_(num_before + 1)
    for first, count in runs:
        mask[first : first + count, num_before + first : num_before + first + count] = 0
    if window is not None:
        places = torch.arange(num_keys, device=device)
        mask.masked_fill_(places <= places[num_before:, None] - window, float("-inf"))
    return mask


def _decodes(
    group: Sequence[tuple[int, int]],
    key_lengths: Sequence[int],
    block_tables: Tensor,
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
) -> Decodes:
    device = block_tables.device
    indices = torch.tensor([index for index, _ in group], device=device)
    rows = torch.tensor([row for _, row in group], device=device)
    first_blocks = [_first_block(1, key_lengths[index], block_size, window) for index, _ in group]
    firsts = torch.tensor(first_blocks, device=device)
    lengths = torch.tensor([key_lengths[index] for index, _ in group], device=device)
    ends = [-(-key_lengths[index] // block_size) for index, _ in group]
    num_blocks = max(end - first for first, end in zip(first_blocks, ends, strict=True))
    places = firsts[:, None] * block_size + torch.arange(num_blocks * block_size, device=device)  # [sequences, keys]
    hidden = places >= lengths[:, None]
    if window is not None:
        hidden |= places < lengths[:, None] - window
    mask = torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))
    # Blocks beyond a sequence's last one are masked out, whatever they are.
    columns = (firsts[:, None] + torch.arange(num_blocks, device=device)).clamp(max=block_tables.shape[1] - 1)
    blocks = block_tables[indices[:, None], columns]
    return Decodes(rows=rows, blocks=blocks, mask=mask[:, None, None], hidden=torch.where(hidden))


def _attend_decodes(query: Tensor, cache: LayerCache, decodes: Decodes) -> Tensor:
    num_sequences, num_heads, head_dim = query.shape
    num_kv_heads = cache.keys.shape[2]
    # Query heads that share a key-value head become rows of one matrix product, which reads the keys once.
    grouped = query.view(num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)

    def gather(each: Tensor) -> Tensor:  # [sequences, kv_heads, keys, head_dim]
        gathered = dequantize(each[decodes.blocks], query.dtype).flatten(1, 2)
        gathered[decodes.hidden] = 0
        return gathered.transpose(1, 2)

    keys, values = map(gather, cache)
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=decodes.mask)
    return attended.reshape(num_sequences, num_heads, head_dim)


def _attend_chunk(query: Tensor, cache: LayerCache, chunk: Chunk) -> Tensor:
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads = cache.keys.shape[2]
    num_queries_per_kv = num_heads // num_kv_heads
    grouped = query.view(num_queries, num_kv_heads, num_queries_per_kv, head_dim).permute(1, 2, 0, 3)

    def gather(each: Tensor) -> Tensor:  # [kv_heads, heads / kv_heads, num_keys, head_dim], expanded without a copy
        per_head = dequantize(each[chunk.blocks], query.dtype).flatten(0, 1)[: chunk.num_keys].transpose(0, 1)
        return per_head[:, None].expand(-1, num_queries_per_kv, -1, -1)

    attended = functional.scaled_dot_product_attention(
        grouped, gather(cache.keys), gather(cache.values), attn_mask=chunk.mask, is_causal=chunk.mask is None
    )
    return attended.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim)
