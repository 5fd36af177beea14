"""The native backend: one library call per operation of `glimpse.engine.worker.layers.ops.Ops`."""

from collections.abc import Sequence
from copy import copy
from ctypes import CDLL, POINTER, byref, cast, pointer
from typing import Any

import torch
from torch import Tensor, nn

from glimpse.engine.worker.layers import ops
from glimpse.engine.worker.layers.attention import AttentionPlan
from glimpse.engine.worker.layers.delta_net import DeltaNet, StatePlan, state_rounds
from glimpse.engine.worker.layers.low_rank import AdaptedRows
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP, PlainMLP
from glimpse.engine.worker.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.layers.short_conv import ShortConv
from glimpse.engine.worker.native import library as structures
from glimpse.engine.worker.native.attention import (
    MAX_HEAD_DIM,
    MaskedPlan,
    packed_attention,
    paged_attention,
    plan_attention,
    rotate,
    rotate_and_store,
    supports,
    supports_head,
)
from glimpse.engine.worker.native.library import Activation, DeltaNetLayer, DType, Level, Norm, ShortConvLayer, Weight
from glimpse.engine.worker.native.linear import PackedLinear
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.tensors.batch import Batch, StateRows
from glimpse.engine.worker.tensors.kv_cache import KVCache, LayerCache, LayerStates

_ACTIVATIONS = {"quick_gelu": Activation.QUICK_GELU, "gelu_tanh": Activation.GELU_TANH}
NO_ADAPTERS = PackedAdapters(0)
"""For steps in which no token has one."""
GATE_ACTIVATIONS = {"silu": Activation.GATED_SILU, "gelu_tanh": Activation.GATED_GELU_TANH}


class NativeOps(ops.TorchOps):
    """Operations on bfloat16 or float32 activations and `PackedLinear`s; in torch where a size has no kernel."""

    def __init__(self, library: CDLL, level: Level) -> None:
        self._library, self._level = library, level
        self._norms: dict[nn.Module, Norm] = {}
        self._experts: dict[nn.Module, ExpertsTensors] = {}
        self._nets: dict[nn.Module, DeltaNetTensors] = {}
        self._convs: dict[nn.Module, ShortConvTensors] = {}
        self._adapters, self._adapted_rows = NO_ADAPTERS, AdaptedRows(())

    def adapted(self, adapters: PackedAdapters, rows: AdaptedRows) -> "NativeOps":
        """Returns these operations with what adapters add to rows of a step."""
        own = copy(self)
        own._adapters, own._adapted_rows = adapters, rows  # noqa: SLF001
        return own

    def norm_linear(self, hidden: Tensor, norm: ops.Norm, linear: nn.Module) -> Tensor:
        adapted = self._added_to([linear], rows=len(hidden))
        return _packed(linear).compute(hidden, self._norm(norm), None, adapted=adapted)

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return _packed(linear).compute(x, None, residual, adapted=self._added_to([linear], rows=len(x)))

    def norm_mlp_add(self, hidden: Tensor, norm: ops.Norm, mlp: ops.MLP, *, residual: bool = True) -> Tensor:
        hidden = hidden.contiguous()
        output = torch.empty_like(hidden)
        if isinstance(mlp, ExpertsMLP):
            if mlp not in self._experts:
                self._experts[mlp] = ExpertsTensors(mlp)
            experts = self._experts[mlp]
            self._library.glimpse_experts(
                self._level,
                byref(experts.experts),
                byref(self._norm(norm)),
                hidden.data_ptr(),
                hidden.shape[0],
                hidden.data_ptr() if residual else None,
                output.data_ptr(),
                *self._added_to(*experts.linears, rows=len(hidden)),
            )
            return output
        first, second, activation = as_mlp(mlp)
        self._library.glimpse_mlp(
            self._level,
            byref(first.packed),
            byref(second.packed),
            byref(self._norm(norm)),
            hidden.data_ptr(),
            hidden.shape[0],
            activation,
            hidden.data_ptr() if residual else None,
            output.data_ptr(),
            *self._added_to([first], [second], rows=len(hidden)),
        )
        return output

    def logits(self, hidden: Tensor, norm: ops.Norm, head: nn.Module) -> Tensor:
        return _packed(head).compute(hidden, self._norm(norm), None, torch.float32)

    def plan_attention(self, batch: Batch, cache: KVCache, window: int | None = None) -> Any:
        if not all(supports(head_dim=dim, block_size=cache.block_size) for dim in cache.head_dims):
            return super().plan_attention(batch, cache, window)
        return plan_attention(
            query_lengths=batch.query_lengths,
            key_lengths=batch.key_lengths,
            block_tables=batch.block_tables,
            window=window,
            bidirectional=batch.bidirectional,
        )

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, cache: LayerCache | None, slots: Tensor, norms: HeadNorms | None = None
    ) -> Tensor:
        if norms is None:
            return rotate_and_store(qkv, rotation, cache, slots)
        parts = (None if each is None else self._norm(each) for each in (norms.query, norms.key, norms.value))
        return rotate_and_store(qkv, rotation, cache, slots, *parts)

    def attend(self, query: Tensor, cache: LayerCache, plan: AttentionPlan | MaskedPlan) -> Tensor:
        match plan:
            case MaskedPlan():
                return paged_attention(query, cache, plan, level=self._level)
            case AttentionPlan():
                return super().attend(query, cache, plan)

    def gate(self, x: Tensor, gates: Tensor) -> Tensor:
        output = torch.empty_like(x)
        self._library.glimpse_multiply_gates(
            self._level, DType.of(x.dtype), x.data_ptr(), gates.data_ptr(), x.numel(), output.data_ptr()
        )
        return output

    def plan_states(self, batch: Batch, cache: KVCache) -> Any:
        if cache.states is None or not supports_states(cache.states.recurrent):
            return super().plan_states(batch, cache)
        return plan_parts(batch.states)

    def delta_net(
        self, projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, plan: list[Tensor] | StatePlan
    ) -> Tensor:
        if not supports_states(states.recurrent):
            return super().delta_net(projected, rates, net, states, plan)
        if net not in self._nets:
            self._nets[net] = DeltaNetTensors(net)
        projected, rates = projected.contiguous(), rates.contiguous()
        output = projected.new_empty(len(projected), net.sizes.value_width)
        for parts in plan:
            assert isinstance(parts, Tensor)
            self._library.glimpse_delta_net(
                self._level,
                DType.of(projected.dtype),
                byref(self._nets[net].layer),
                parts.data_ptr(),
                len(parts),
                projected.data_ptr(),
                rates.data_ptr(),
                states.conv.data_ptr(),
                states.recurrent.data_ptr(),
                output.data_ptr(),
            )
        return output

    def short_conv(self, projected: Tensor, layer: ShortConv, states: LayerStates, plan: list[Tensor]) -> Tensor:
        if layer not in self._convs:
            self._convs[layer] = ShortConvTensors(layer)
        output = projected.new_empty(len(projected), layer.sizes.conv_width)
        for parts in plan:
            self._library.glimpse_short_conv(
                DType.of(projected.dtype),
                byref(self._convs[layer].layer),
                parts.data_ptr(),
                len(parts),
                projected.data_ptr(),
                states.conv.data_ptr(),
                output.data_ptr(),
            )
        return output

    def attend_segments(self, qkv: Tensor, rotation: Rotation | None, num_segments: int) -> Tensor:
        num_patches, _, num_heads, head_dim = qkv.shape
        if not supports_head(head_dim):
            return super().attend_segments(qkv, rotation, num_segments)
        if rotation is not None:
            rotate(qkv.flatten(1, 2), rotation, num_heads=2 * num_heads)
        starts = torch.arange(0, num_patches + 1, num_patches // num_segments, dtype=torch.int32)
        query, key, value = qkv.unbind(1)
        return packed_attention(query, key, value, starts, level=self._level)

    def _added_to(self, *linears: Sequence[nn.Module], rows: int) -> Sequence[Any]:
        """Returns what adapters add to each of these linears, and the rows that have adapters, of so many."""
        if not self._adapters.added:
            return (None,) * (len(linears) + 1)
        added = [self._adapters.added_to(each) for each in linears]
        adapted = None if added == [None] * len(added) else self._adapters.pack(self._adapted_rows.within(rows))
        return *added, adapted

    def _norm(self, module: ops.Norm) -> Norm:
        if module not in self._norms:
            self._norms[module] = as_norm(module)
        return self._norms[module]


def supports_states(recurrent: Tensor) -> bool:
    """Whether the kernels have room for heads of these sizes, [..., key_head_dim, value_head_dim]."""
    return max(recurrent.shape[-2:]) <= MAX_HEAD_DIM


def plan_parts(states: Sequence[StateRows]) -> list[Tensor]:
    """Returns the parts of each round as a table of `StatePart`s, as in delta_net.h: int64 [parts, 4]."""
    return [torch.tensor([rows[:4] for rows in parts]) for parts in state_rounds(states)]


class DeltaNetTensors:
    """The weights of a gated delta net for the kernels."""

    def __init__(self, net: DeltaNet) -> None:
        sizes = net.sizes
        self._tensors = [net.conv.float().T.contiguous(), net.decay, net.decay_bias, net.norm.weight.float()]
        self.layer = DeltaNetLayer(
            *(tensor.data_ptr() for tensor in self._tensors),
            net.norm.eps,
            sizes.num_key_heads,
            sizes.num_value_heads,
            sizes.key_head_dim,
            sizes.value_head_dim,
            sizes.conv_size,
        )


class ShortConvTensors:
    """The weights of a gated short convolution for the kernels."""

    def __init__(self, layer: ShortConv) -> None:
        self._taps = layer.conv.float().T.contiguous()
        self.layer = ShortConvLayer(self._taps.data_ptr(), layer.sizes.conv_width, layer.sizes.conv_size)


def as_norm(module: ops.Norm) -> Norm:
    """Returns a norm for the kernels. It points to the module's weights."""
    centered = not isinstance(module, RMSNorm)
    bias = module.bias.data_ptr() if centered else None
    return Norm(module.weight.data_ptr(), bias, module.eps, centered)


class ExpertsTensors:
    """A mixture of experts for the kernels. It points to the weights of the module."""

    def __init__(self, mlp: ExpertsMLP) -> None:
        experts = [as_mlp(expert) for expert in mlp.experts if isinstance(expert, GatedMLP)]
        self.linears = [first for first, _, _ in experts], [second for _, second, _ in experts]
        matrices = Weight * len(experts)
        self._factors = None if mlp.factors is None else mlp.factors.float().contiguous()
        self.experts = structures.Experts(
            router=pointer(_packed(mlp.router).packed),
            first=cast(matrices(*(first.packed for first, _, _ in experts)), POINTER(Weight)),
            second=cast(matrices(*(second.packed for _, second, _ in experts)), POINTER(Weight)),
            num_experts=len(experts),
            num_chosen=mlp.config.num_chosen + mlp.shares,
            shares=mlp.shares,
            renormalizes=mlp.config.renormalized,
            activation=GATE_ACTIVATIONS[mlp.activation],
            router_norm=None if mlp.router_norm is None else pointer(as_norm(mlp.router_norm)),
            factors=None if self._factors is None else self._factors.data_ptr(),
        )


def as_mlp(mlp: GatedMLP | PlainMLP) -> tuple[PackedLinear, PackedLinear, Activation]:
    """Returns an MLP's packed linears and the activation between them."""
    match mlp:
        case GatedMLP():
            return _packed(mlp.gate_up_proj), _packed(mlp.down_proj), GATE_ACTIVATIONS[mlp.activation]
        case PlainMLP():
            return _packed(mlp.fc1), _packed(mlp.fc2), _ACTIVATIONS[mlp.activation]


def _packed(linear: nn.Module) -> PackedLinear:
    assert isinstance(linear, PackedLinear)
    return linear
