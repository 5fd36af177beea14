"""The CUDA backend: cuBLAS for products, and Triton kernels for the operations between them.

Attention over the paged KV cache is pluggable. In a decode step nothing here synchronizes with the device, and launches
depend on shapes only, so the step can be captured in a CUDA graph.
"""

from typing import Any, Protocol

from torch import Tensor, nn

from glimpse.engine.worker.cuda.attention import paged_attention
from glimpse.engine.worker.cuda.delta_net import update_singles
from glimpse.engine.worker.cuda.quantized import multiply
from glimpse.engine.worker.cuda.rotary import rotate, rotate_and_store
from glimpse.engine.worker.cuda.rows import activate, gated_silu, rms_norm
from glimpse.engine.worker.layers import ops
from glimpse.engine.worker.layers.delta_net import DeltaNet, delta_net
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP, PlainMLP, gated
from glimpse.engine.worker.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.kv_cache import KVCache, LayerCache, LayerStates
from glimpse.engine.worker.tensors.paged_plan import PagedPlan, plan_attention


class PagedAttention(Protocol):
    """Attention over the paged KV cache. The plan of a decode step must be a `PagedPlan`."""

    def plan(self, batch: Batch, cache: KVCache) -> Any:
        """See `Ops.plan_attention`."""
        ...

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """See `Ops.attend`."""
        ...


class TritonAttention:
    """Attention by the Triton kernels."""

    def plan(self, batch: Batch, cache: KVCache) -> PagedPlan:  # noqa: ARG002 (other implementations need its sizes)
        return plan_attention(
            query_lengths=batch.query_lengths, key_lengths=batch.key_lengths, block_tables=batch.block_tables
        )

    def attend(self, query: Tensor, cache: LayerCache, plan: PagedPlan) -> Tensor:
        return paged_attention(query, cache, plan)


class CudaOps(ops.TorchOps):
    """Operations on weights of any quantization scheme; schemes without a kernel use their module's `forward`."""

    def __init__(self, attention: PagedAttention) -> None:
        self._attention = attention

    def plan_attention(self, batch: Batch, cache: KVCache, window: int | None = None) -> Any:
        # Models with such attention use another backend: see `resolve_backend`.
        assert window is None
        assert not batch.bidirectional
        return self._attention.plan(batch, cache)

    def norm_linear(self, hidden: Tensor, norm: ops.Norm, linear: nn.Module) -> Tensor:
        return self.linear_add(_normalize(hidden, norm), linear, None)

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        if isinstance(linear, Int8Linear | GroupQuantizedLinear):
            return multiply(x, linear, residual)
        if residual is None:
            return linear(x)
        if isinstance(linear, Linear) and linear.bias is None:
            return residual.addmm_(x, linear.weight.t())  # the product adds the residual without a kernel of its own
        return residual.add_(linear(x))

    def norm_mlp_add(self, hidden: Tensor, norm: ops.Norm, mlp: ops.MLP, *, residual: bool = True) -> Tensor:
        x = _normalize(hidden, norm)
        if isinstance(mlp, ExpertsMLP):
            scores = self.linear_add(x, mlp.router, None)
            mixed = mlp.mix(x, scores, lambda expert, tokens: self._mlp(x[tokens], expert, None))
            return hidden.add_(mixed) if residual else mixed
        return self._mlp(x, mlp, hidden if residual else None)

    def _mlp(self, x: Tensor, mlp: GatedMLP | PlainMLP, residual: Tensor | None) -> Tensor:
        match mlp:
            case GatedMLP():
                inner, last = _gated(self.linear_add(x, mlp.gate_up_proj, None), mlp), mlp.down_proj
            case PlainMLP():
                inner, last = activate(self.linear_add(x, mlp.fc1, None), mlp.activation), mlp.fc2
        return self.linear_add(inner, last, residual)

    def logits(self, hidden: Tensor, norm: ops.Norm, head: nn.Module) -> Tensor:
        return self.linear_add(_normalize(hidden, norm), head, None).float()

    def rotate_and_store(
        self, qkv: Tensor, rotation: Rotation, cache: LayerCache | None, slots: Tensor, norms: HeadNorms | None = None
    ) -> Tensor:
        assert cache is not None  # such models have sliding windows too
        if norms is not None:
            norms.normalize(qkv, num_kv_heads=cache.keys.shape[2])
        return rotate_and_store(qkv, rotation, cache, slots)

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        return self._attention.attend(query, cache, plan)

    def delta_net(self, projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, plan: Any) -> Tensor:
        return delta_net(projected, rates, net, states, plan, update_singles)

    def attend_segments(self, qkv: Tensor, rotation: Rotation | None, num_segments: int) -> Tensor:
        if rotation is not None:
            rotate(qkv.flatten(1, 2), rotation, num_heads=2 * qkv.shape[2])
        # Segments of equal length form a batch without padding, so torch's FlashAttention computes them in one launch
        # without copies. A varlen kernel would do the same work.
        return super().attend_segments(qkv, None, num_segments)


def _gated(gate_up: Tensor, mlp: GatedMLP) -> Tensor:
    return gated_silu(gate_up) if mlp.activation == "silu" else gated(gate_up, mlp.activation)


def _normalize(hidden: Tensor, norm: ops.Norm) -> Tensor:
    # torch's LayerNorm is a single kernel already.
    return rms_norm(hidden, norm.weight, norm.eps) if isinstance(norm, RMSNorm) else norm(hidden)
