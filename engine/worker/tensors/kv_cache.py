"""What decoder layers keep of earlier tokens: keys and values in blocks, and states of fixed size.

The engine's core tracks which sequence owns a block or a state.

Shapes are those of the tensors' views. On the CPU the memory layout is what the native kernels read: each head's part
of a block is contiguous, keys one after the other, values dimension by dimension.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import KVHeads, LayerKind, StateSizes, TextConfig
from glimpse.engine.core.draft_budget import NUM_FREE_TOKENS
from glimpse.engine.core.memory.sliding_window import SlidingWindow
from glimpse.engine.protocol.config import EngineOptions, KvCacheDType

SCALE_BYTES = 4
"""Numbers of 8 bits that the scale of a head takes."""
LEAST_MAGNITUDE = 1e-30
"""Heads of smaller numbers are rounded to zeros, so that no factor is infinite."""


def quantize(heads: Tensor) -> Tensor:
    """Rounds [..., head_dim] to int8 [..., head_dim + SCALE_BYTES]: the last numbers are the bytes of the scale of
    each head, the largest magnitude over 127."""
    heads = heads.float()
    largest = heads.abs().amax(dim=-1, keepdim=True)
    factors = largest.new_tensor(127) / largest.clamp(min=LEAST_MAGNITUDE)
    rounded = (heads * factors).round().to(torch.int8)
    return torch.cat([rounded, (largest / 127).view(torch.int8)], dim=-1)


def dequantize(heads: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what `quantize` rounded, [..., head_dim]. Numbers of other types than int8 are returned as they are."""
    if heads.dtype != torch.int8:
        return heads
    rounded, scales = heads.split([heads.shape[-1] - SCALE_BYTES, SCALE_BYTES], dim=-1)
    return (rounded.float() * scales.contiguous().view(torch.float32)).to(dtype)


class LayerCache(NamedTuple):
    """The cache of one layer. Those of several layers have them as another first dimension."""

    keys: Tensor
    """[num_blocks, block_size, kv_heads, head_dim], or int8 as `quantize` returns them"""
    values: Tensor
    """[num_blocks, block_size, kv_heads, head_dim], likewise"""

    @property
    def is_int8(self) -> bool:
        return self.keys.dtype == torch.int8

    @property
    def head_dim(self) -> int:
        return self.keys.shape[-1] - SCALE_BYTES * self.is_int8

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Stores new tokens.

        Args:
            slots: int64 [tokens]: block * block_size + offset in the block, without duplicates.
            key: [tokens, kv_heads, head_dim]
            value: [tokens, kv_heads, head_dim]
        """
        block_size = self.keys.shape[1]
        blocks, offsets = slots // block_size, slots % block_size
        if self.is_int8:
            key, value = quantize(key), quantize(value)
        self.keys[blocks, offsets] = key
        self.values[blocks, offsets] = value


class LayerStates(NamedTuple):
    """The states of one layer that keeps them. A sequence has the same one in all layers."""

    conv: Tensor
    """[num_states, conv_size - 1, conv_width]: what the convolution reads of the last tokens."""
    recurrent: Tensor
    """float32 [num_states, value_heads, key_head_dim, value_head_dim] of a gated delta net; empty for others."""


class LayerPlace(NamedTuple):
    """Where a layer finds what it keeps: in the tensors of its kind."""

    kind: LayerKind
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """What all layers keep of earlier tokens: keys and values of attention, and states of other layers."""

    keys: Tensor
    """[layers of attention, num_blocks, block_size, kv_heads, head_dim], or int8 as `quantize` returns them"""
    values: Tensor
    """[layers of attention, num_blocks, block_size, kv_heads, head_dim], likewise"""
    dtype: torch.dtype
    """Type of activations."""
    sliding: LayerCache | None = None
    """Keys and values of sliding layers, whose blocks may be fewer: with ids of their own, or as many as the others."""
    states: LayerStates | None = None
    """Tensors of `LayerStates`, each with the layers that keep states as another first dimension; None without any."""
    places: tuple[LayerPlace, ...] = ()
    """The place of each layer. Empty: `keys` and `values` have all layers in their order."""

    @property
    def num_blocks(self) -> int:
        return self.keys.shape[1]

    @property
    def num_sliding_blocks(self) -> int:
        """Blocks of sliding layers, if they have ids of their own; 0 if they are parts of the other blocks."""
        num_blocks = 0 if self.sliding is None else self.sliding.keys.shape[1]
        return 0 if num_blocks == self.num_blocks else num_blocks

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def head_dims(self) -> tuple[int, ...]:
        """The dimensions that heads have, in some layer or other."""
        full = LayerCache(self.keys, self.values)
        return tuple(each.head_dim for each in (full, self.sliding) if each is not None)

    @property
    def num_states(self) -> int:
        """How many states each layer that keeps them has; 0 without any."""
        return 0 if self.states is None else self.states.conv.shape[1]

    def layer(self, index: int) -> LayerCache:
        kind, place = self.places[index] if self.places else ("full", index)
        keys, values = self.sliding if kind == "sliding" and self.sliding is not None else (self.keys, self.values)
        return LayerCache(keys[place], values[place])

    def layer_states(self, index: int) -> LayerStates:
        """Returns the states of a layer that keeps them."""
        assert self.states is not None
        place = self.places[index].row
        return LayerStates(self.states.conv[place], self.states.recurrent[place])


class CacheSizes(NamedTuple):
    """How a memory is divided."""

    num_blocks: int
    num_states: int
    """0 where no layer keeps a state."""
    num_sliding_blocks: int
    """0 where those of sliding layers are parts of the other blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What the options say of a cache."""

    block_size: int
    max_sequences: int
    max_batch_tokens: int
    max_model_len: int
    """0: not given."""
    dtype: torch.dtype
    may_draft: bool = False
    """Steps may have draft tokens, each of which writes a state."""

    @classmethod
    def of(cls, options: EngineOptions, dtype: torch.dtype, device: torch.device) -> "CachePlan":
        return cls(
            block_size=options.block_size,
            max_sequences=options.max_sequences,
            max_batch_tokens=options.max_batch_tokens,
            max_model_len=options.max_model_len or 0,
            dtype=dtype,
            may_draft=options.may_draft(device.type),
        )

    @property
    def max_states(self) -> int:
        """The most states that are of use: two for each sequence that runs, its own and a snapshot, and one for each
        draft token of a step."""
        return 2 * self.max_sequences + (NUM_FREE_TOKENS - 1 if self.may_draft else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The shape of a decoder's cache, as far as the decoder determines it."""

    num_kv_heads: int
    head_dim: int
    layer_kinds: tuple[LayerKind, ...] = ("full",)
    sliding: KVHeads | None = None
    """Heads of the sliding layers; None without any."""
    window: int = 0
    """Tokens that these attend to."""
    owners: tuple[int, ...] = ()
    """For each layer the one whose keys and values it attends to; see `TextConfig.cache_layer`. Empty: its own."""
    states: StateSizes | None = None
    is_int8: bool = False
    """Keys and values have 8 bits; otherwise the type of activations."""

    @classmethod
    def of(cls, text: TextConfig, kv_cache_dtype: KvCacheDType = "auto") -> "CacheShape":
        return cls(
            is_int8=kv_cache_dtype == "int8",
            num_kv_heads=text.num_kv_heads,
            head_dim=text.head_dim,
            layer_kinds=text.layer_kinds + ("full",) * text.uses_mtp,
            sliding=text.sliding and (text.sliding.kv_heads or KVHeads(text.num_kv_heads, text.head_dim)),
            window=text.sliding.window if text.sliding else 0,
            owners=(*map(text.cache_layer, range(text.num_layers)), *[text.num_layers] * text.uses_mtp),
            states=text.states,
        )

    @property
    def _places(self) -> tuple[LayerPlace, ...]:
        kinds = self.layer_kinds
        owners = self.owners or tuple(range(len(kinds)))
        own = [index for index, owner in enumerate(owners) if index == owner]
        return tuple(
            LayerPlace(kinds[owner], sum(kinds[each] == kinds[owner] for each in own if each < owner))
            for owner in owners
        )

    def _count(self, kind: LayerKind) -> int:
        """Returns how many layers have something of their own in the tensors of a kind."""
        return len({place for place in self._places if place.kind == kind})

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Returns the size of a block of so many tokens in bytes, keys and values of all layers."""
        heads = self._count("full") * self.num_kv_heads
        return 2 * block_size * heads * self._head_bytes(self.head_dim, dtype) + self.sliding_block_bytes(
            block_size, dtype
        )

    def _head_bytes(self, head_dim: int, dtype: torch.dtype) -> int:
        return head_dim + SCALE_BYTES if self.is_int8 else head_dim * dtype.itemsize

    def sliding_block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Returns the part of `block_bytes` that sliding layers have."""
        if self.sliding is None:
            return 0
        heads = self._count("sliding") * self.sliding.number
        return 2 * block_size * heads * self._head_bytes(self.sliding.dim, dtype)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Returns the size of a sequence's states in bytes, those of all layers; 0 if no layer keeps one."""
        sizes = self.states
        if sizes is None:
            return 0
        conv = (sizes.conv_size - 1) * sizes.conv_width * dtype.itemsize
        return self._count(sizes.kind) * (conv + math.prod(sizes.matrices) * torch.float32.itemsize)

    def why_no_room(self, sizes: CacheSizes, num_bytes: int, plan: CachePlan) -> str | None:
        """Returns why a memory of these sizes cannot be used; None if it holds a block."""
        if sizes.num_blocks:
            return None
        states = f" and the {self.state_bytes(plan.dtype)} of a sequence's states" if sizes.num_states else ""
        block = self.block_bytes(plan.block_size, plan.dtype)
        return f"'--kv-cache-bytes': expected at least the {block} bytes of a block{states}, got {num_bytes}"

    def divide(self, num_bytes: int, plan: CachePlan) -> CacheSizes:
        """Returns how many blocks and states a memory holds.

        States take half of it at most, and are no more than `CachePlan.max_states`. So do blocks of sliding layers,
        which are no more than the windows of all sequences and a step take, no less than one sequence needs in a step,
        and leave room for `max_model_len`. Where that makes them no fewer than the other blocks, they are parts of
        these.
        """
        block, state = self.block_bytes(plan.block_size, plan.dtype), self.state_bytes(plan.dtype)
        num_states = 0
        if state:
            num_states = min(max(num_bytes // 2 // state, 1), plan.max_states)
            num_bytes = max(num_bytes - num_states * state, 0)
        num_blocks, num_sliding_blocks = num_bytes // block, 0
        if self.sliding is not None:
            sliding = self.sliding_block_bytes(plan.block_size, plan.dtype)
            least, most = self._sliding_bounds(plan)
            spare = num_bytes - -(-plan.max_model_len // plan.block_size) * (block - sliding)
            num = max(min(num_bytes // 2 // sliding, spare // sliding, most), least)
            num_others = (num_bytes - num * sliding) // (block - sliding)
            if num_others > num:
                num_blocks, num_sliding_blocks = num_others, num
        return CacheSizes(num_blocks=num_blocks, num_states=num_states, num_sliding_blocks=num_sliding_blocks)

    def sequence_bytes(self, num_tokens: int, plan: CachePlan, sizes: CacheSizes) -> int:
        """Returns what a sequence of so many tokens holds of a memory that `divide` divided into `sizes`."""
        block, sliding = (count(plan.block_size, plan.dtype) for count in (self.block_bytes, self.sliding_block_bytes))
        num_blocks = num_in_window = -(-num_tokens // plan.block_size)
        if sizes.num_sliding_blocks:
            num_in_window = SlidingWindow(num_tokens=self.window, block_size=plan.block_size).num_held(num_tokens)
        return num_blocks * (block - sliding) + num_in_window * sliding + self.state_bytes(plan.dtype)

    def needed_bytes(self, num_tokens: int, plan: CachePlan) -> int:
        """Returns the size of a memory of which `divide` gives so many tokens to layers that attend to all."""
        block, sliding = (count(plan.block_size, plan.dtype) for count in (self.block_bytes, self.sliding_block_bytes))
        num_blocks = -(-num_tokens // plan.block_size)
        others = num_blocks * (block - sliding)
        if not sliding:
            state = self.state_bytes(plan.dtype)
            return others + min(max(others, state), plan.max_states * state)
        least, most = self._sliding_bounds(plan)
        return min(others + min(max(others, least * sliding), most * sliding), num_blocks * block)

    def _sliding_bounds(self, plan: CachePlan) -> tuple[int, int]:
        """Returns the fewest and the most blocks of sliding layers that are of use."""
        window = SlidingWindow(num_tokens=self.window, block_size=plan.block_size)
        num_new = -(-plan.max_batch_tokens // plan.block_size)
        return window.num_blocks(plan.max_batch_tokens), plan.max_sequences * window.num_blocks(1) + num_new

    def allocate(
        self,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_states: int = 0,
        num_sliding_blocks: int = 0,
    ) -> KVCache:
        """Allocates a cache of zeros. Attention also reads masked slots, where NaN would spread."""
        places = self._places

        def pair(kind: LayerKind, heads: KVHeads, num_blocks: int = num_blocks) -> LayerCache:
            layers, (num_heads, head_dim) = self._count(kind), heads
            head_dim += SCALE_BYTES * self.is_int8
            number = torch.int8 if self.is_int8 else dtype
            keys = _zeros((layers, num_blocks, num_heads, block_size, head_dim), number, device)
            if device.type != "cpu":
                keys = keys.view(layers, num_blocks, block_size, num_heads, head_dim)
                return LayerCache(keys, torch.zeros_like(keys))
            values = _zeros((layers, num_blocks, num_heads, head_dim, block_size), number, device)
            return LayerCache(keys.permute(0, 1, 3, 2, 4), values.permute(0, 1, 4, 2, 3))

        keys, values = pair("full", KVHeads(self.num_kv_heads, self.head_dim))
        states = None
        if (sizes := self.states) is not None:
            conv = (self._count(sizes.kind), num_states, sizes.conv_size - 1, sizes.conv_width)
            recurrent = (*conv[:2], *sizes.matrices)
            states = LayerStates(_zeros(conv, dtype, device), _zeros(recurrent, torch.float32, device))
        return KVCache(
            keys=keys,
            values=values,
            dtype=dtype,
            sliding=self.sliding and pair("sliding", self.sliding, num_sliding_blocks or num_blocks),
            states=states,
            places=() if places == tuple(LayerPlace("full", index) for index in range(len(places))) else places,
        )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch writes the zeros; NumPy's come from the kernel, page by page, when they are first touched.
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
