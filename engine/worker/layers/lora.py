"""LoRA adapters as a layer over a backend's operations, for steps in which a token has one."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from glimpse.engine.worker.layers.low_rank import AdaptedRows, EveryRow, LowRankUpdate, LowRankUpdates
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP, PlainMLP, activate
from glimpse.engine.worker.layers.ops import MLP, Norm, Ops, OpsLayer


class Adapters:
    """The adapters of a model, each in a slot."""

    def __init__(self, num_slots: int) -> None:
        """`num_slots`: most adapters at a time."""
        self.digests: dict[str, bytes] = {}
        """By names."""
        self.slots: dict[bytes, int] = {}
        """By digests, which adapters of several names may share."""
        self.added: dict[nn.Module, LowRankUpdates] = {}
        """What they add to linears. Only grows."""
        self.encoding: set[bytes] = set()
        """Digests of those that change the encoder."""
        self._num_slots = num_slots

    def put(self, digest: bytes, added: Mapping[nn.Module, LowRankUpdate], *, encodes: bool = False) -> None:
        """Adds an adapter. There must be a free slot. `encodes`: it changes the encoder."""
        slot = min(set(range(self._num_slots)).difference(self.slots.values()))
        for linear in added.keys() - self.added.keys():
            self.added[linear] = self._make(linear)
        self._fill(slot, added)
        self.slots[digest] = slot
        if encodes:
            self.encoding.add(digest)

    def remove(self, digest: bytes) -> None:
        """Removes an adapter that no running sequence has."""
        slot = self.slots.pop(digest)
        self.encoding.discard(digest)
        for added in self.added.values():
            added.put(slot, None)

    @property
    def num_bytes(self) -> int:
        """Size of the matrices of all."""
        return sum(update.num_bytes for each in self.added.values() for update in each.adapters if update is not None)

    def ops(self, local: Ops, rows: AdaptedRows) -> Ops:
        """Returns the operations of a step with such rows."""
        return LoraOps(local, self.added, rows)

    @contextmanager
    def encoder_ops(self, local: Ops, encoder: nn.Module, digest: bytes) -> Generator[Ops]:
        """Yields the operations of an encoder with an adapter. Linears that are called are adapted meanwhile too."""
        ops = self.ops(local, EveryRow(self.slots[digest]))
        with ExitStack() as stack:
            for linear in self.added.keys() & set(encoder.modules()):
                stack.callback(self._adapt_calls(linear, ops))
            yield ops

    def _make(self, linear: nn.Module) -> LowRankUpdates:
        """Returns the backend's `LowRankUpdates` of a linear."""
        return LowRankUpdates(linear, self._num_slots)

    def _fill(self, slot: int, added: Mapping[nn.Module, LowRankUpdate]) -> None:
        for linear, matrices in added.items():
            self.added[linear].put(slot, matrices)

    def _adapt_calls(self, linear: nn.Module, ops: Any) -> Callable[[], object]:
        """Adapts a linear where it is called, until the result is called."""
        return linear.register_forward_hook(ops.adapt_output).remove


class LoraOps(OpsLayer):
    """A backend's operations, with what adapters add."""

    def __init__(self, local: Ops, added: Mapping[nn.Module, LowRankUpdates], rows: AdaptedRows) -> None:
        super().__init__(local)
        self._added = added
        self._rows = rows
        self._computed: nn.Module | None = None  # the linear of the operation that runs

    def norm_linear(self, hidden: Tensor, norm: Norm, linear: nn.Module) -> Tensor:
        self._computed = linear
        return self._adapt(self._local.norm_linear(hidden, norm, linear), hidden, norm, linear)

    def linear_add(self, x: Tensor, linear: nn.Module, residual: Tensor | None) -> Tensor:
        self._computed = linear
        return self._adapt(self._local.linear_add(x, linear, residual), x, None, linear)

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        mlps = mlp.experts if isinstance(mlp, ExpertsMLP) else (mlp,)
        if self._added.keys().isdisjoint(linear for each in mlps for linear in each.children()):
            return self._local.norm_mlp_add(hidden, norm, mlp, residual=residual)
        if isinstance(mlp, ExpertsMLP):
            mixed = self._mixed(hidden, norm, mlp)
            return hidden + mixed if residual else mixed
        if isinstance(mlp, GatedMLP):
            inner = self._local.combine(self.norm_linear(hidden, norm, mlp.gate_up_proj), mlp.activation)
            return self.linear_add(inner, mlp.down_proj, hidden if residual else None)
        assert isinstance(mlp, PlainMLP)
        inner = activate(self.norm_linear(hidden, norm, mlp.fc1), mlp.activation)
        return self.linear_add(inner, mlp.fc2, hidden if residual else None)

    def _mixed(self, hidden: Tensor, norm: Norm, mlp: ExpertsMLP) -> Tensor:
        """Computes a mixture one expert after the other."""
        x = norm(hidden)

        def compute(expert: GatedMLP, tokens: Tensor) -> Tensor:
            own = LoraOps(self._local, self._added, self._rows.among(tokens))
            inner = self._local.combine(own.linear_add(x[tokens], expert.gate_up_proj, None), expert.activation)
            return own.linear_add(inner, expert.down_proj, None)

        return mlp.mix(x, self._local.norm_linear(hidden, mlp.router_norm or norm, mlp.router), compute)

    def adapt_output(self, linear: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        """Adds to the output of a linear that is called, as a forward hook, unless an operation calls it."""
        if linear is not self._computed:
            self._adapt(output.flatten(0, -2), args[0].flatten(0, -2), None, linear)

    def _adapt(self, y: Tensor, x: Tensor, norm: Norm | None, linear: nn.Module) -> Tensor:
        self._computed = None
        if (added := self._added.get(linear)) is not None:
            self._local.adapt(y, x, norm, added, self._rows.within(len(x)))
        return y
