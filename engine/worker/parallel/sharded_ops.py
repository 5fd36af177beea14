"""Layer operations for a decoder whose weights are sharded over ranks: adds the all-reduces."""

from torch import Tensor, nn

from glimpse.engine.worker.layers.ops import MLP, Norm, Ops
from glimpse.engine.worker.parallel.group import Group


class ParallelOps:
    """A backend's operations on this rank's shard of the weights.

    Products with `hidden_size` outputs (row-parallel) are summed over the ranks; rank 0 adds the residual. All other
    products (column-parallel) give this rank's own heads and features. Only rank 0 needs logits.
    """

    def __init__(self, local: Ops, group: Group) -> None:
        self._local = local
        self._group = group
        self.norm_linear = local.norm_linear
        self.plan_attention = local.plan_attention
        self.rotate_and_store = local.rotate_and_store
        self.attend = local.attend
        self.attend_segments = local.attend_segments

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        return self._group.sum(self._local.linear_add(x, linear, residual if self._is_first else None))

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        return self._group.sum(self._local.norm_mlp_add(hidden, norm, mlp, residual=residual and self._is_first))

    def logits(self, hidden: Tensor, norm: Norm, head: nn.Module) -> Tensor:
        """Returns float32 [tokens, vocab_size] on rank 0 and an empty tensor on other ranks."""
        return self._local.logits(hidden, norm, head) if self._is_first else hidden.new_empty(0, 0).float()

    @property
    def _is_first(self) -> bool:
        return self._group.rank == 0
