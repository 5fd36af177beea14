"""The operations of a decoder whose weights are parted over ranks. Knows which results are sums over the ranks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from glimpse.engine.layers.ops import MLP, Norm, Ops
from glimpse.engine.layers.rotary import Rotation
from glimpse.engine.parallel.group import Group
from glimpse.engine.tensors.kv_cache import KVCache, LayerCache


class ParallelOps:
    """A backend's operations on this rank's part of the weights.

    Products that end in the decoder's width are sums over the ranks, to which rank 0 adds the residual. The others'
    results are this rank's own heads and features. Rank 0 alone has use for logits.
    """

    def __init__(self, own: Ops, group: Group) -> None:
        self._own = own
        self._group = group

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        return self._own.norm_linear(hidden, norm, linear)

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return self._group.sum(self._own.linear_add(x, linear, residual if self._is_first else None))

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        return self._group.sum(self._own.norm_mlp_add(hidden, norm, mlp, residual=residual and self._is_first))

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        """float32 [tokens, vocabulary]; of another rank than 0 nothing, [0, 0]."""
        return self._own.logits(hidden, norm, head) if self._is_first else hidden.new_empty(0, 0).float()

    def plan_attention(
        self,
        *,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        block_tables: Tensor,
        cache: KVCache,
    ) -> Any:
        return self._own.plan_attention(
            query_lengths=query_lengths, key_lengths=key_lengths, block_tables=block_tables, cache=cache
        )

    def rotate_and_store(self, qkv: Tensor, rotation: Rotation, cache: LayerCache, slots: Tensor) -> Tensor:
        return self._own.rotate_and_store(qkv, rotation, cache, slots)

    def attend(self, query: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        return self._own.attend(query, cache, plan)

    def attend_frames(self, qkv: Tensor, rotation: Rotation, num_frames: int) -> Tensor:
        return self._own.attend_frames(qkv, rotation, num_frames)

    @property
    def _is_first(self) -> bool:
        return self._group.rank == 0
