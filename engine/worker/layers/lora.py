"""LoRA adapters as a layer over a backend's operations, for steps in which a token has one."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from glimpse.engine.worker.layers.low_rank import AdaptedRows, EveryRow, LowRankUpdate, LowRankUpdates
from glimpse.engine.worker.layers.mlp import GatedMLP, PlainMLP, activate
from glimpse.engine.worker.layers.ops import MLP, Norm, Ops, OpsLayer


class Adapters:
    """The adapters of a model, each in a slot."""

    def __init__(self, num_slots: int, make: Callable[[nn.Module, int], LowRankUpdates] = LowRankUpdates) -> None:
        """
        Args:
            num_slots: most adapters at a time.
            make: makes the backend's `LowRankUpdates` of a linear.
        """
        self.digests: dict[str, bytes] = {}
        """By names."""
        self.slots: dict[bytes, int] = {}
        """By digests, which adapters of several names may share."""
        self.added: dict[nn.Module, LowRankUpdates] = {}
        """What they add to linears. Only grows."""
        self.encoding: set[bytes] = set()
        """Digests of those that change the encoder."""
        self._num_slots = num_slots
        self._make = make

    def put(self, digest: bytes, added: Mapping[nn.Module, LowRankUpdate], *, encodes: bool = False) -> None:
        """Adds an adapter. There must be a free slot. `encodes`: whether it changes the encoder."""
        slot = min(set(range(self._num_slots)).difference(self.slots.values()))
        for linear, matrices in added.items():
            if linear not in self.added:
                self.added[linear] = self._make(linear, self._num_slots)
            self.added[linear].put(slot, matrices)
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
        ops = LoraOps(local, self.added, EveryRow(self.slots[digest]))
        with ExitStack() as stack:
            for linear in self.added.keys() & set(encoder.modules()):
                stack.callback(linear.register_forward_hook(ops.adapt_output).remove)
            yield ops


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
        linears = set(mlp.children()) if isinstance(mlp, GatedMLP | PlainMLP) else set[nn.Module]()
        if self._added.keys().isdisjoint(linears):
            return self._local.norm_mlp_add(hidden, norm, mlp, residual=residual)
        if isinstance(mlp, GatedMLP):
            inner = self._local.combine(self.norm_linear(hidden, norm, mlp.gate_up_proj), mlp.activation)
            return self.linear_add(inner, mlp.down_proj, hidden if residual else None)
        assert isinstance(mlp, PlainMLP)
        inner = activate(self.norm_linear(hidden, norm, mlp.fc1), mlp.activation)
        return self.linear_add(inner, mlp.fc2, hidden if residual else None)

    def adapt_output(self, linear: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        """Adds to the output of a linear that is called, as a forward hook, unless an operation calls it."""
        if linear is not self._computed:
            self._adapt(output.flatten(0, -2), args[0].flatten(0, -2), None, linear)

    def _adapt(self, y: Tensor, x: Tensor, norm: Norm | None, linear: nn.Module) -> Tensor:
        self._computed = None
        if (added := self._added.get(linear)) is not None:
            self._local.adapt(y, x, norm, added, self._rows.within(len(x)))
        return y
