"""What adapters add to native products, compared with the reference implementation at every level of this machine."""

import copy
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from glimpse.engine.worker.layers.linear import Linear, replace_linears
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.low_rank import AdaptedRows, LowRankUpdate, LowRankUpdatePart
from glimpse.engine.worker.layers.mlp import GatedMLP
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops, TorchOps
from glimpse.engine.worker.native.library import Level, load_library
from glimpse.engine.worker.native.linear import pack
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.native.native_ops import NativeOps
from glimpse.engine.worker.tensors.batch import AdapterRows
from tests.engine.levels import at_each_level, needs_kernels
from tests.engine.quantized import quantize
from tests.engine.worker.native.test_native_groups import quantized as in_groups
from tests.engine.worker.native.test_native_linear import make, rows

pytestmark = needs_kernels

SLOTS = (0, -1, 1, 0, 1, 1, 1, 1, 1, -1, 0, 1, 0, 0, 0, 0, 0, -1, 1, 0, 1)
"""The adapter of each row of two tiles; -1: none."""


class Layer(nn.Module):
    """A linear whose parts meet within tiles, and an MLP whose gates may not fill one."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.inner = inner
        self.norm = RMSNorm(128, eps=1e-6)
        self.linear = Linear(128, (24, 40, 10), bias=True)
        self.mlp = GatedMLP(128, inner)

    def outputs(self, ops: Ops, hidden: Tensor) -> list[Tensor]:
        return [ops.norm_linear(hidden, self.norm, self.linear), ops.norm_mlp_add(hidden, self.norm, self.mlp)]

    def adapters(self, adapters: Adapters, dtype: torch.dtype) -> Adapters:
        """Adds two: one changes all matrices, the other some, and gates and ups together."""
        first, second = self.mlp.gate_up_proj, self.mlp.down_proj
        many: dict[nn.Module, LowRankUpdate] = {
            self.linear: update(128, (0, 24, 64, 74), 3, dtype),
            first: update(128, (0, self.inner, 2 * self.inner), 6, dtype),
            second: update(self.inner, (0, 128), 5, dtype),
        }
        adapters.put(b"many", many)
        few: dict[nn.Module, LowRankUpdate] = {
            self.linear: update(128, (24, 64), 9, dtype),
            first: update(128, (0, 2 * self.inner), 2, dtype),
        }
        adapters.put(b"few", few)
        return adapters


def update(inputs: int, edges: Sequence[int], rank: int, dtype: torch.dtype) -> LowRankUpdate:
    """Returns what an adapter adds to the matrices between some outputs."""
    parts = [
        LowRankUpdatePart(
            ranks=slice(index * rank, (index + 1) * rank),
            outputs=slice(start, end),
            up=rows(end - start, rank, dtype, seed=rank + index),
        )
        for index, (start, end) in enumerate(pairwise(edges))
    ]
    return LowRankUpdate(down=rows(rank * len(parts), inputs, dtype, seed=rank) / 20, parts=parts)


def adapted(slots: Sequence[int]) -> AdaptedRows:
    return AdaptedRows(AdapterRows(row, 1, slot) for row, slot in enumerate(slots) if slot >= 0)


@at_each_level
@pytest.mark.parametrize("weights", ["none", "int8", "int4"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float32, 1e-5)], ids=str)
def test_rows_have_what_their_adapters_add_alone_and_together(
    level: Level, weights: str, dtype: torch.dtype, tolerance: float
):
    native = make(Layer(96 if weights == "int4" else 90), 3, dtype)
    if weights == "int8":
        quantize(native)
    if weights == "int4":
        replace_linears(native, (Linear,), lambda linear, _: in_groups(linear, 4, 32))
    wide = copy.deepcopy(native).float()
    pack(native, load_library(), level, dtype)
    base, hidden = NativeOps(load_library(), level), rows(len(SLOTS), 128, dtype)
    adapters = native.adapters(PackedAdapters(2), dtype)
    together = native.outputs(adapters.ops(base, adapted(SLOTS)), hidden)

    exact = wide.adapters(Adapters(2), torch.float32)
    expected = wide.outputs(exact.ops(TorchOps(), adapted(SLOTS)), hidden.float())
    for computed, own in zip(together, expected, strict=True):
        error = (computed - own).square().mean().sqrt() / own.std()
        assert error < max(tolerance, {"none": 0, "int8": 1e-3, "int4": 0.02}[weights])
    for row, slot in enumerate(SLOTS):
        ops = base if slot < 0 else adapters.ops(base, adapted([slot]))
        for batch, alone in zip(together, native.outputs(ops, hidden[row : row + 1]), strict=True):
            assert torch.equal(batch[row : row + 1], alone)
