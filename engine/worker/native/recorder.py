"""Records the operations of a decode step, which the kernels then run as one program."""

from ctypes import Array, Structure, pointer
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from glimpse.engine.worker.layers import ops
from glimpse.engine.worker.layers.delta_net import DeltaNet
from glimpse.engine.worker.layers.low_rank import AdaptedRows, LowRankUpdates
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GateActivation
from glimpse.engine.worker.layers.norm import HeadNorms
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.layers.short_conv import ShortConv
from glimpse.engine.worker.native.library import Operation, Weight
from glimpse.engine.worker.native.linear import PackedLinear
from glimpse.engine.worker.native.low_rank import PackedUpdates
from glimpse.engine.worker.native.native_ops import (
    GATE_ACTIVATIONS,
    DeltaNetTensors,
    ExpertsTensors,
    ShortConvTensors,
    as_mlp,
    as_norm,
)
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.kv_cache import KVCache, LayerCache, LayerStates


class OperationKind(IntEnum):
    """The kind of a recorded operation, as in program.cpp."""

    LINEAR = 0
    MLP = 1
    ROTATE = 2
    ATTEND = 3
    EXPERTS = 4
    GATE = 5
    DELTA_NET = 6
    SHORT_CONV = 7
    ADAPT = 8
    COMBINE = 9


class Recorder:
    """Operations that compute nothing: they append themselves to a list and return the tensor of their result.

    Operations of the same name with as many results share that tensor, so a result is valid until the next such
    operation. A decoder layer has one of them, and uses its results before the next layer.
    """

    def __init__(self, rows: int, dtype: torch.dtype) -> None:
        """`dtype`: of activations and of the KV cache."""
        self._rows = rows
        self._dtype = dtype
        self._operations: list[Operation] = []
        self._structures: list[Structure] = []  # those that operations point to
        self._tensors: list[DeltaNetTensors | ExpertsTensors | ShortConvTensors] = []
        self._results: dict[tuple[str, int], Tensor] = {}

    def operations(self) -> Array[Operation]:
        """Returns the recorded operations. They point to memory of this recorder and of the model."""
        return (Operation * len(self._operations))(*self._operations)

    def norm_linear(self, hidden: Tensor, norm: ops.Norm, linear: nn.Module) -> Tensor:
        return self._product("norm_linear", hidden, linear, norm=self._norm(norm))

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return self._product("linear_add", x, linear, residual=_address(residual))

    def norm_mlp_add(self, hidden: Tensor, norm: ops.Norm, mlp: ops.MLP, *, residual: bool = True) -> Tensor:
        if isinstance(mlp, ExpertsMLP):
            output = self._result("norm_mlp_add", hidden.shape[1])
            self._tensors.append(experts := ExpertsTensors(mlp))
            self._record(
                OperationKind.EXPERTS,
                experts=pointer(experts.experts),
                norm=self._norm(norm),
                x=_address(hidden),
                residual=_address(hidden) if residual else None,
                y=output.data_ptr(),
            )
            return output
        first, second, activation = as_mlp(mlp)
        output = self._result("norm_mlp_add", second.packed.out_features)
        self._record(
            OperationKind.MLP,
            weight=pointer(first.packed),
            second=pointer(second.packed),
            norm=self._norm(norm),
            x=_address(hidden),
            residual=_address(hidden) if residual else None,
            y=output.data_ptr(),
            activation=activation,
        )
        return output

    def combine(self, gate_up: Tensor, activation: GateActivation) -> Tensor:
        width = gate_up.shape[1] // 2
        output = self._result("combine", width)
        self._record(
            OperationKind.COMBINE,
            x=_address(gate_up),
            width=width,
            activation=GATE_ACTIVATIONS[activation],
            y=output.data_ptr(),
        )
        return output

    def adapt(self, y: Tensor, x: Tensor, norm: ops.Norm | None, added: LowRankUpdates, rows: AdaptedRows) -> None:
        del rows  # a program uses those of the step that runs it
        assert isinstance(added, PackedUpdates)
        self._record(
            OperationKind.ADAPT,
            added=pointer(added.packed),
            norm=None if norm is None else self._norm(norm),
            x=_address(x),
            y=_address(y),
        )

    def logits(self, hidden: Tensor, norm: ops.Norm, head: nn.Module) -> Tensor:
        logits = torch.empty(self._rows, _packed(head).out_features)
        weight = pointer(_packed(head))
        x, norm_pointer = _address(hidden), self._norm(norm)
        self._record(OperationKind.LINEAR, weight=weight, norm=norm_pointer, x=x, logits=logits.data_ptr())
        return logits

    def plan_attention(self, batch: Batch, cache: KVCache, window: int | None = None) -> Any:
        raise NotImplementedError("the attention of a program is planned when it runs")

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, cache: LayerCache | None, slots: Tensor, norms: HeadNorms | None = None
    ) -> Tensor:
        assert cache is not None  # see `Decoder.is_recordable`
        del rotation, slots  # a program uses those of the step that runs it
        num_kv_heads, head_dim = cache.keys.shape[2], cache.head_dim
        num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
        query = self._result("query", num_heads * head_dim)
        members: dict[str, Any] = {}
        if norms is not None and norms.key is not None:
            members = {"norm": self._norm(norms.query), "key_norm": self._norm(norms.key)}
        self._record_cached(OperationKind.ROTATE, qkv, cache, query, **members)
        return query.unflatten(1, (num_heads, head_dim))

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        del plan  # a program attends to the sequences of the step that runs it
        output = self._result("attended", query[0].numel())
        self._record_cached(OperationKind.ATTEND, query, cache, output)
        return output.view_as(query)

    def gate(self, x: Tensor, gates: Tensor) -> Tensor:
        width = x.shape[1]
        output = self._result("gate", width)
        self._record(OperationKind.GATE, x=_address(x), gates=_address(gates), width=width, y=output.data_ptr())
        return output

    def plan_states(self, batch: Batch, cache: KVCache) -> Any:
        raise NotImplementedError("the states of a program are those of the step that runs it")

    def delta_net(self, projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, plan: Any) -> Tensor:
        del plan
        output = self._result("delta_net", net.sizes.value_width)
        self._tensors.append(tensors := DeltaNetTensors(net))
        self._record(
            OperationKind.DELTA_NET,
            x=_address(projected),
            gates=_address(rates),
            net=pointer(tensors.layer),
            conv_states=states.conv.data_ptr(),
            recurrent=states.recurrent.data_ptr(),
            y=output.data_ptr(),
        )
        return output

    def short_conv(self, projected: Tensor, layer: ShortConv, states: LayerStates, plan: Any) -> Tensor:
        del plan
        output = self._result("short_conv", layer.sizes.conv_width)
        self._tensors.append(tensors := ShortConvTensors(layer))
        self._record(
            OperationKind.SHORT_CONV,
            x=_address(projected),
            conv=pointer(tensors.layer),
            conv_states=states.conv.data_ptr(),
            y=output.data_ptr(),
        )
        return output

    def attend_segments(self, qkv: Tensor, rotation: Rotation | None, num_segments: int) -> Tensor:
        raise NotImplementedError("encoders are not recorded")

    def _product(self, name: str, x: Tensor, linear: nn.Module, **members: Any) -> Tensor:
        weight = _packed(linear)
        output = self._result(name, weight.out_features)
        self._record(OperationKind.LINEAR, weight=pointer(weight), x=_address(x), y=output.data_ptr(), **members)
        return output

    def _record_cached(self, kind: OperationKind, x: Tensor, cache: LayerCache, output: Tensor, **members: Any) -> None:
        keys, values = cache.keys.data_ptr(), cache.values.data_ptr()
        self._record(kind, x=_address(x), keys=keys, values=values, y=output.data_ptr(), **members)

    def _record(self, kind: OperationKind, **members: Any) -> None:
        self._operations.append(Operation(kind=kind, **members))

    def _result(self, name: str, width: int) -> Tensor:
        if (name, width) not in self._results:
            self._results[name, width] = torch.empty(self._rows, width, dtype=self._dtype)
        return self._results[name, width]

    def _norm(self, module: ops.Norm) -> Any:
        self._structures.append(structure := as_norm(module))
        return pointer(structure)


def _packed(linear: nn.Module) -> Weight:
    assert isinstance(linear, PackedLinear)
    return linear.packed


def _address(tensor: Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()
