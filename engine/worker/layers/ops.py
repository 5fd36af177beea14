"""Operations of a transformer layer, each coarse enough for a backend to fuse its parts.

Models call `Ops`. `TorchOps` is the reference implementation for all devices. Other backends override what they compute
otherwise, and may store weights in another layout.
"""

from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.worker.layers.attention import AttentionPlan, paged_attention, plan_attention
from glimpse.engine.worker.layers.delta_net import DeltaNet, delta_net, plan_states
from glimpse.engine.worker.layers.low_rank import AdaptedRows, LowRankUpdates
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GateActivation, GatedMLP, PlainMLP, gated
from glimpse.engine.worker.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.worker.layers.rotary import Rotation, rotate
from glimpse.engine.worker.layers.short_conv import ShortConv, short_conv
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.kv_cache import KVCache, LayerCache, LayerStates

Norm = RMSNorm | nn.LayerNorm
MLP = GatedMLP | PlainMLP | ExpertsMLP


class Ops(Protocol):
    """The interface of a backend. `residual` and `hidden` may be overwritten."""

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        """linear(norm(hidden)): [tokens, width] → [tokens, out]"""
        ...

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        """residual + linear(x): [tokens, in] → [tokens, width]; linear(x) if residual is None."""
        ...

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        """hidden + mlp(norm(hidden)): [tokens, width] → [tokens, width]; without `hidden +` if residual is False."""
        ...

    def combine(self, gate_up: Tensor, activation: GateActivation) -> Tensor:
        """activation(gate) · up: [tokens, 2 · width], gates first → [tokens, width]"""
        ...

    def adapt(self, y: Tensor, x: Tensor, norm: Norm | None, added: LowRankUpdates, rows: AdaptedRows) -> None:
        """Adds up · down · norm(x) of each row's adapter to y, the output of a linear for x: [tokens, in]."""
        ...

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        """head(norm(hidden)): [tokens, width] → float32 [tokens, vocabulary]"""
        ...

    def plan_attention(self, batch: Batch, cache: KVCache, window: int | None = None) -> Any:
        """Returns what `attend` needs in all layers of a step, or in those with a sliding window of so many tokens; see
        `glimpse.engine.worker.layers.attention.plan_attention`."""
        ...

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, cache: LayerCache | None, slots: Tensor, norms: HeadNorms | None = None
    ) -> Tensor:
        """Applies rotary embedding to queries and keys, and writes keys and values to the cache.

        Args:
            qkv: [tokens, (heads + 2 · kv_heads) · head_dim]: query heads, key heads, value heads; may be overwritten.
            cache: KV cache of the layer; None if `qkv` has queries alone.
            slots: int64 [tokens]

        Returns:
            The rotated queries, [tokens, heads, head_dim].
        """
        ...

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """Computes attention over the layer's KV cache: [tokens, heads, head_dim] → [tokens, heads, head_dim]."""
        ...

    def gate(self, x: Tensor, gates: Tensor) -> Tensor:
        """x · sigmoid(gates): [tokens, width] → [tokens, width]"""
        ...

    def plan_states(self, batch: Batch, cache: KVCache) -> Any:
        """Returns what `delta_net` and `short_conv` need in all layers of a step."""
        ...

    def delta_net(self, projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, plan: Any) -> Tensor:
        """Updates states; see `glimpse.engine.worker.layers.delta_net.delta_net`."""
        ...

    def short_conv(self, projected: Tensor, layer: ShortConv, states: LayerStates, plan: Any) -> Tensor:
        """Updates states; see `glimpse.engine.worker.layers.short_conv.short_conv`."""
        ...

    def attend_segments(self, qkv: Tensor, rotation: Rotation | None, num_segments: int) -> Tensor:
        """Computes attention of each patch to all patches of its segment.

        Args:
            qkv: [patches, 3 (query, key, value), heads, head_dim], contiguous; may be overwritten.
            rotation: rotation of the patches, applied to queries and keys; None for none.
            num_segments: number of segments, which have equally many patches.

        Returns:
            [patches, heads, head_dim]
        """
        ...


class TorchOps:
    """The torch backend, for all devices: the reference implementation."""

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        return linear(norm(hidden))

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return linear(x) if residual is None else residual + linear(x)

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        x = norm(hidden)
        output = mlp(x, hidden) if isinstance(mlp, ExpertsMLP) else mlp(x)
        return hidden + output if residual else output

    def combine(self, gate_up: Tensor, activation: GateActivation) -> Tensor:
        return gated(gate_up, activation)

    def adapt(self, y: Tensor, x: Tensor, norm: Norm | None, added: LowRankUpdates, rows: AdaptedRows) -> None:
        for slot, on_host in rows.groups:
            if (own := added.adapters[slot]) is not None:
                indices = on_host.to(x.device)
                inputs = x[indices] if norm is None else norm(x[indices])
                inner = functional.linear(inputs, own.down)
                for part in own.parts:
                    y[indices, part.outputs] += functional.linear(inner[:, part.ranks], part.up)

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        return head(norm(hidden)).float()

    def plan_attention(self, batch: Batch, cache: KVCache, window: int | None = None) -> Any:
        return plan_attention(
            query_lengths=batch.query_lengths,
            key_lengths=batch.key_lengths,
            block_tables=batch.block_tables,
            block_size=cache.block_size,
            dtype=cache.dtype,
            window=window,
            bidirectional=batch.bidirectional,
        )

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, cache: LayerCache | None, slots: Tensor, norms: HeadNorms | None = None
    ) -> Tensor:
        num_kv_heads, head_dim = 0 if cache is None else cache.keys.shape[2], 2 * rotation.cos.shape[-1]
        if norms is not None:
            norms.normalize(qkv, num_kv_heads=num_kv_heads)
        heads = qkv.unflatten(-1, (-1, head_dim))  # [tokens, query, key and value heads, head_dim]
        query, key, value = heads.split([heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
        if cache is not None:
            cache.write(slots, rotate(key, rotation), value)
        return rotate(query, rotation)

    def attend(self, query: Tensor, cache: LayerCache, plan: AttentionPlan) -> Tensor:
        return paged_attention(query, cache, plan)

    def gate(self, x: Tensor, gates: Tensor) -> Tensor:
        return x * gates.sigmoid()

    def plan_states(self, batch: Batch, cache: KVCache) -> Any:
        return plan_states(batch.states, cache.keys.device)

    def delta_net(self, projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, plan: Any) -> Tensor:
        return delta_net(projected, rates, net, states, plan)

    def short_conv(self, projected: Tensor, layer: ShortConv, states: LayerStates, plan: Any) -> Tensor:
        return short_conv(projected, layer, states, plan)

    def attend_segments(self, qkv: Tensor, rotation: Rotation | None, num_segments: int) -> Tensor:
        query, key, value = qkv.unbind(1)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        query, key, value = (  # [segments, heads, patches of a segment, head_dim]
            part.unflatten(0, (num_segments, -1)).transpose(1, 2) for part in (query, key, value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        return attended.transpose(1, 2).flatten(0, 1)


class OpsLayer(TorchOps):
    """A layer over other operations. Those that a subclass does not define are theirs."""

    def __init__(self, local: Ops) -> None:
        self._local = local
        for name, value in vars(TorchOps).items():
            if not name.startswith("_") and getattr(type(self), name) is value:
                setattr(self, name, getattr(local, name))
