"""The CUDA backend's operations: cuBLAS's products, and kernels of our own for what is between them.

Knows what they compute from `engine.layers.ops`, and takes attention over the paged cache from whoever computes it. In
a step in which each sequence has one new token nothing here waits for the device, and what is launched depends on
shapes alone: such a step can be captured in a CUDA graph.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.cuda.attention import CudaAttentionPlan, paged_attention, plan_attention
from glimpse.engine.cuda.quantized import multiply
from glimpse.engine.cuda.rotary import rotate, rotate_and_store
from glimpse.engine.cuda.rows import gated_silu, quick_gelu, rms_norm
from glimpse.engine.layers import ops
from glimpse.engine.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.layers.linear import Int8Linear, Linear
from glimpse.engine.layers.mlp import GatedMLP, QuickGeluMLP
from glimpse.engine.layers.norm import RMSNorm
from glimpse.engine.layers.rotary import Rotation
from glimpse.engine.tensors.kv_cache import KVCache, LayerCache


class PagedAttention(Protocol):
    """Attention over the paged cache; the plan for a step in which all only decode is a `CudaAttentionPlan`."""

    def plan(
        self, *, query_lengths: Sequence[int], key_lengths: Sequence[int], block_tables: Tensor, cache: KVCache
    ) -> Any:
        """As `Ops.plan_attention`."""
        ...

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """As `Ops.attend`."""
        ...


class TritonAttention:
    """Attention by our own kernels."""

    def plan(
        self,
        *,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        block_tables: Tensor,
        cache: KVCache,  # noqa: ARG002 (other attention asks it for its sizes)
    ) -> CudaAttentionPlan:
        return plan_attention(query_lengths=query_lengths, key_lengths=key_lengths, block_tables=block_tables)

    def attend(self, query: Tensor, cache: LayerCache, plan: CudaAttentionPlan) -> Tensor:
        return paged_attention(query, cache, plan)


class CudaOps:
    """Operations on weights in any form; for one that we have no kernels for, its module computes."""

    def __init__(self, attention: PagedAttention) -> None:
        self._attention = attention

    def norm_linear(self, hidden: Tensor, norm: ops.Norm, linear: nn.Module) -> Tensor:
        return self.linear_add(_normalise(hidden, norm), linear, None)

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        if isinstance(linear, Int8Linear | GroupQuantizedLinear):
            return multiply(x, linear, residual)
        if residual is None:
            return linear(x)
        if isinstance(linear, Linear) and linear.bias is None:
            return residual.addmm_(x, linear.weight.t())  # the product adds what is there: no kernel of its own
        return residual.add_(linear(x))

    def norm_mlp_add(self, hidden: Tensor, norm: ops.Norm, mlp: ops.MLP, *, residual: bool = True) -> Tensor:
        x = _normalise(hidden, norm)
        match mlp:
            case GatedMLP():
                inner, last = gated_silu(self.linear_add(x, mlp.gate_up_proj, None)), mlp.down_proj
            case QuickGeluMLP():
                inner, last = quick_gelu(self.linear_add(x, mlp.fc1, None)), mlp.fc2
        return self.linear_add(inner, last, hidden if residual else None)

    def logits(self, hidden: Tensor, norm: ops.Norm, head: nn.Module) -> Tensor:
        return self.linear_add(_normalise(hidden, norm), head, None).float()

    def plan_attention(
        self, *, query_lengths: Sequence[int], key_lengths: Sequence[int], block_tables: Tensor, cache: KVCache
    ) -> Any:
        return self._attention.plan(
            query_lengths=query_lengths, key_lengths=key_lengths, block_tables=block_tables, cache=cache
        )

    def rotate_and_store(self, qkv: Tensor, rotation: Rotation, cache: LayerCache, slots: Tensor) -> Tensor:
        return rotate_and_store(qkv, rotation, cache, slots)

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        return self._attention.attend(query, cache, plan)

    def attend_segments(self, qkv: Tensor, rotation: Rotation, num_segments: int) -> Tensor:
        rotate(qkv.flatten(1, 2), rotation, num_heads=2 * qkv.shape[2])
        query, key, value = (  # [frames, heads, patches of a frame, head_dim]
            part.unflatten(0, (num_segments, -1)).transpose(1, 2) for part in qkv.unbind(1)
        )
        # Frames of equal size fill a batch without padding, so torch's FlashAttention serves them in one launch that
        # reads queries, keys and values where they lie: a kernel for frames of any size would do the same work.
        attended = functional.scaled_dot_product_attention(query, key, value)
        return attended.transpose(1, 2).flatten(0, 1)


def _normalise(hidden: Tensor, norm: ops.Norm) -> Tensor:
    # torch's own LayerNorm is one kernel already.
    return rms_norm(hidden, norm.weight, norm.eps) if isinstance(norm, RMSNorm) else norm(hidden)
