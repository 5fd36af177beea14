"""Records the operations of a decode step, which the kernels then run as one program."""

from collections.abc import Sequence
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
from glimpse.engine.worker.native.library import LowRanks, Operation, Weight
from glimpse.engine.worker.native.linear import PackedLinear
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.native.native_ops import (
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


class Recorder:
    """Operations that compute nothing: they append themselves to a list and return the tensor of their result.

    Operations of the same name with as many results share that tensor, so a result is valid until the next such
    operation. A decoder layer has one of them, and uses its results before the next layer.
    """

    def __init__(self, rows: int, dtype: torch.dtype, adapters: PackedAdapters) -> None:
        """`dtype`: of activations and of the KV cache. `adapters`: those of rows of the steps."""
        self._rows = rows
        self._dtype = dtype
        self._adapters = adapters
        self._operations: list[Operation] = []
        self._structures: list[Structure | Array[LowRanks]] = []  # those that operations point to
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
                **self._added(*experts.linears),
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
            **self._added([first], [second]),
        )
        return output

    def combine(self, gate_up: Tensor, activation: GateActivation) -> Tensor:
        raise NotImplementedError("a program combines gates in its products")

    def adapt(self, y: Tensor, x: Tensor, norm: ops.Norm | None, added: LowRankUpdates, rows: AdaptedRows) -> None:
        raise NotImplementedError("a program adds what adapters do in its products")

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
        members |= self._added([linear])
        self._record(OperationKind.LINEAR, weight=pointer(weight), x=_address(x), y=output.data_ptr(), **members)
        return output

    def _added(self, first: Sequence[nn.Module], second: Sequence[nn.Module] = ()) -> dict[str, Any]:
        """Returns what adapters add to one or several linears, and to those after them."""
        added, second_added = self._adapters.added_to(first), self._adapters.added_to(second)
        self._structures += [each for each in (added, second_added) if each is not None]
        return {"added": added, "second_added": second_added}

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
