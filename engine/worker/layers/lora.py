"""LoRA adapters (arXiv 2106.09685) as a layer over a backend's operations, for steps in which a token has one.

The matrices of all adapters of a linear are stacked: a step computes Ax for all of them, clears what belongs to another
adapter than the token's, and adds the product with all B. So a step has as many products whatever the
number of adapters in it, and rows without an adapter add zeros.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from glimpse.engine.worker.layers.mlp import GatedMLP, gated
from glimpse.engine.worker.layers.ops import MLP, Norm, Ops
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.transfer import upload


class LowRank(nn.Module):
    """What adapters add to a linear. Each of the matrices that it stacks has its own columns of `down`'s outputs."""

    def __init__(
        self, down: nn.Module, ups: Sequence[nn.Module], places: Sequence[tuple[slice, slice]], slots: Sequence[int]
    ) -> None:
        """
        Args:
            down: A of all adapters and stacked matrices.
            ups: B of all adapters, for each stacked matrix that one of them changes.
            places: The outputs of `down` that each of `ups` reads, and the outputs of the linear that it adds to.
            slots: The adapter of each output of `down`.
        """
        super().__init__()
        self.down = down
        self.ups = nn.ModuleList(ups)
        self.places = tuple(places)
        self.slots = tuple(slots)


class Adapters:
    """The adapters of a model."""

    def __init__(self, digests: Mapping[str, bytes], slots: Mapping[bytes, int], added: Mapping[nn.Module, LowRank]):
        """
        Args:
            digests: The digest of each, by its name.
            slots: The number of each, by its digest.
            added: What they add to linears of the decoder.
        """
        self.digests = digests
        self.slots = slots
        self.added = added

    def ops(self, local: Ops, batch: Batch) -> Ops:
        """Returns the operations of a step, of which at least one row has an adapter."""
        return LoraOps(local, self.added, batch)


NO_ADAPTERS = Adapters({}, {}, {})


class LoraOps:
    """A backend's operations, with what adapters add."""

    def __init__(self, local: Ops, added: Mapping[nn.Module, LowRank], batch: Batch) -> None:
        """
        Args:
            added: What adapters add to linears.
            batch: The rows of the step, of which at least one has an adapter.
        """
        rows = batch.adapters
        self._local = local
        self._added = added
        self._rows = slice(rows[0].row, rows[-1].row + rows[-1].num_rows)
        slots = np.full(self._rows.stop, -1, dtype=np.int64)
        for row, num_rows, slot in rows:
            slots[row : row + num_rows] = slot
        self._slots = upload({"slots": slots[self._rows, None]}, batch.token_ids.device)["slots"]
        self._others: dict[tuple[int, ...], Tensor] = {}  # columns of other adapters, by the slots of all columns
        self.logits = local.logits
        self.plan_attention = local.plan_attention
        self.rotate_and_store = local.rotate_and_store
        self.attend = local.attend
        self.gate = local.gate
        self.plan_states = local.plan_states
        self.delta_net = local.delta_net
        self.short_conv = local.short_conv
        self.attend_segments = local.attend_segments

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        output = self._local.norm_linear(hidden, norm, linear)
        if (added := self._added.get(linear)) is None:
            return output
        return self._add(output, added, self._local.norm_linear(hidden[self._rows], norm, added.down))

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        output = self._local.linear_add(x, linear, residual)
        if (added := self._added.get(linear)) is None:
            return output
        return self._add(output, added, self._local.linear_add(x[self._rows], added.down, None))

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        if not isinstance(mlp, GatedMLP) or self._added.keys().isdisjoint((mlp.gate_up_proj, mlp.down_proj)):
            return self._local.norm_mlp_add(hidden, norm, mlp, residual=residual)
        inner = gated(self.norm_linear(hidden, norm, mlp.gate_up_proj), mlp.activation)
        return self.linear_add(inner, mlp.down_proj, hidden if residual else None)

    def _add(self, output: Tensor, added: LowRank, inner: Tensor) -> Tensor:
        """Adds B of the rows with adapters, [rows, ranks], to the output of all."""
        inner.masked_fill_(self._other_columns(added.slots, inner.device), 0)
        for up, (columns, outputs) in zip(added.ups, added.places, strict=True):
            output[self._rows, outputs].add_(self._local.linear_add(inner[:, columns], up, None))
        return output

    def _other_columns(self, slots: tuple[int, ...], device: torch.device) -> Tensor:
        if slots not in self._others:
            columns = upload({"slots": np.array(slots, dtype=np.int64)}, device)["slots"]
            self._others[slots] = self._slots != columns
        return self._others[slots]
