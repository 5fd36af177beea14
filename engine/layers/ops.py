"""The operations that a layer is made of, coarse enough that a backend can fuse what is inside each.

`Ops` is what models call; `TorchOps` is the plain definition, on any device. Another backend is another class with
these methods, and may keep weights in another form.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.layers.attention import AttentionPlan, paged_attention, plan_attention
from glimpse.engine.layers.mlp import GatedMLP, QuickGeluMLP
from glimpse.engine.layers.norm import RMSNorm
from glimpse.engine.layers.rotary import Rotation, rotate
from glimpse.engine.tensors.kv_cache import KVCache, LayerCache

Norm = RMSNorm | nn.LayerNorm
MLP = GatedMLP | QuickGeluMLP


class Ops(Protocol):
    """A backend. What is added to, `residual` or `hidden`, may be overwritten."""

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        """linear(norm(hidden)): [tokens, width] → [tokens, out]"""
        ...

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        """residual + linear(x): [tokens, in] → [tokens, width]; linear(x) alone without a residual."""
        ...

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        """hidden + mlp(norm(hidden)): [tokens, width] → [tokens, width]; without the residual mlp(norm(hidden))."""
        ...

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        """head(norm(hidden)): [tokens, width] → float32 [tokens, vocabulary]"""
        ...

    def plan_attention(
        self,
        *,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        block_tables: Tensor,
        cache: KVCache,
    ) -> Any:
        """What `attend` needs and all layers of a step share; see `glimpse.engine.layers.attention.plan_attention`."""
        ...

    def rotate_and_store(self, qkv: Tensor, rotation: Rotation, cache: LayerCache, slots: Tensor) -> Tensor:
        """Turns queries and keys, writes keys and values into the cache.

        Args:
            qkv: [tokens, (heads + 2 · kv_heads) · head_dim]: query heads, key heads, value heads.
            rotation: of the step's tokens.
            cache: of the layer.
            slots: int64 [tokens]

        Returns:
            [tokens, heads, head_dim]: the queries.
        """
        ...

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """Attention over the layer's cache: [tokens, heads, head_dim] → the same."""
        ...

    def attend_frames(self, qkv: Tensor, rotation: Rotation, num_frames: int) -> Tensor:
        """Turns queries and keys of patches; each patch then attends to those of its own frame.

        Args:
            qkv: [patches, 3 (query, key, value), heads, head_dim], contiguous; may be overwritten.
            rotation: of the patches.
            num_frames: of equal numbers of patches.

        Returns:
            [patches, heads, head_dim]
        """
        ...


class TorchOps:
    """The plain backend."""

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        return linear(norm(hidden))

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return linear(x) if residual is None else residual + linear(x)

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        return hidden + mlp(norm(hidden)) if residual else mlp(norm(hidden))

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        return head(norm(hidden)).float()

    def plan_attention(
        self,
        *,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        block_tables: Tensor,
        cache: KVCache,
    ) -> AttentionPlan:
        return plan_attention(
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            block_tables=block_tables,
            block_size=cache.block_size,
            dtype=cache.keys.dtype,
        )

    def rotate_and_store(self, qkv: Tensor, rotation: Rotation, cache: LayerCache, slots: Tensor) -> Tensor:
        num_kv_heads, head_dim = cache.keys.shape[2:]
        heads = qkv.unflatten(-1, (-1, head_dim))  # [tokens, query, key and value heads, head_dim]
        query, key, value = heads.split([heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
        cache.write(slots, rotate(key, rotation), value)
        return rotate(query, rotation)

    def attend(self, query: Tensor, cache: LayerCache, plan: AttentionPlan) -> Tensor:
        return paged_attention(query, cache.keys, cache.values, plan)

    def attend_frames(self, qkv: Tensor, rotation: Rotation, num_frames: int) -> Tensor:
        query, key, value = qkv.unbind(1)
        query, key, value = (  # [frames, heads, patches of a frame, head_dim]
            part.unflatten(0, (num_frames, -1)).transpose(1, 2)
            for part in (rotate(query, rotation), rotate(key, rotation), value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        return attended.transpose(1, 2).flatten(0, 1)
