"""Layers that are quantized while they compute a text: each is read, seen, rounded, computed again, and freed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from glimpse.engine.worker.layers.linear import Linear, UnquantizedLinear
from glimpse.engine.worker.layers.mixers import LayerInputs
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.models.decoder import DecoderLayer
from glimpse.engine.worker.quantize.blocks import Blocks
from glimpse.engine.worker.quantize.rounding import Rounded
from glimpse.engine.worker.tensors.kv_cache import KVCache

StoredMatrix: TypeAlias = Rounded | Blocks
"""A matrix in a format of checkpoints."""
Write: TypeAlias = Callable[[str, Tensor | StoredMatrix], None]
"""Takes a tensor of the new checkpoint, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """A tensor of a checkpoint; of one that stacks several, a part."""

    name: str
    """In the file; that of a part is its checkpoint name."""
    tensor: Tensor
    arrange: Callable[[Tensor], Iterable[tuple[str, Tensor]]]
    """From the tensor to those of the model, with their checkpoint names."""

    @property
    def destination(self) -> str:
        """The first of the model's tensors that it becomes."""
        return next(iter(self.arrange(self.tensor)))[0]


Round: TypeAlias = Callable[[Sequence[StoredPart], Tensor | None], Iterable[StoredMatrix | None]]
"""From the parts of a linear, [out, in], and the second moments of its inputs, [in, in], or of parts whose inputs are
not known, to what stands for each; None for one that is kept."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """What the layers of a decoder share while it computes a text."""

    round_parts: Round
    write: Write
    num_seen: int
    """Rows whose inputs count, the first ones. The others measure what is lost."""
    exact: Tensor
    """The hidden states of a decoder that is not quantized."""
    exact_added: Tensor | None
    """What its layers add to them: see `LayerEmbedder`."""
    exact_cache: KVCache
    """A cache of its own where layers read the keys and values of others; else that of the rounded decoder, which each
    layer overwrites."""

    def round_and_write(
        self, parts: Sequence[StoredPart], moments: Tensor | None, destinations: Mapping[str, Tensor]
    ) -> None:
        """Writes parts, and copies those that are rounded to the model's tensors."""
        for each, rounded in zip(parts, self.round_parts(parts, moments), strict=True):
            self.write(each.name, each.tensor if rounded is None else rounded)
            if rounded is not None:
                fill(destinations, [replace(each, tensor=rounded.weight)])


def linears(layer: nn.Module) -> list[Linear]:
    """Returns the linears of a layer whose weights are quantized."""
    return [each for each in layer.modules() if isinstance(each, Linear) and not isinstance(each, UnquantizedLinear)]


class QuantizingLayer(nn.Module):
    """A decoder's layer that has weights only while it computes, and then writes them."""

    def __init__(
        self, layer: DecoderLayer, prefix: str, read: Callable[[], Iterator[StoredPart]], shared: Pass
    ) -> None:
        """
        Args:
            layer: on the meta device.
            prefix: of the checkpoint names of its tensors.
            read: reads them.
        """
        super().__init__()
        self._layer, self._prefix, self._read, self._shared = layer, prefix, read, shared

    def forward(
        self, hidden: Tensor, ops: Ops, inputs: LayerInputs, cache: KVCache, index: int, added: Tensor | None = None
    ) -> Tensor:
        """Computes what the layer does with rounded weights."""
        layer, shared = self._layer.to_empty(device=hidden.device), self._shared
        compute = partial(layer, ops=ops, inputs=inputs, cache=cache, index=index, added=added)
        destinations = {self._prefix + name: tensor for name, tensor in layer.named_weights()}
        stored = [*self._read()]
        fill(destinations, stored)
        exact_added = None if shared.exact_added is None else shared.exact_added[:, index]
        shared.exact = compute(shared.exact, cache=shared.exact_cache, added=exact_added)
        moments = _input_moments(layer, partial(compute, hidden.clone()), shared.num_seen)
        self._round(stored, destinations, moments)
        hidden = compute(hidden)
        layer.to_empty(device="meta")
        return hidden

    def _round(
        self, stored: Sequence[StoredPart], destinations: Mapping[str, Tensor], moments: dict[Linear, Tensor]
    ) -> None:
        """Writes all tensors, and gives the layer those that it rounds. Those of one linear are rounded together."""
        owners = {linear.weight.untyped_storage().data_ptr(): linear for linear in moments}
        weights: defaultdict[Linear | None, list[StoredPart]] = defaultdict(list)
        for each in stored:
            weights[owners.get(destinations[each.destination].untyped_storage().data_ptr())].append(each)
        for linear, parts in weights.items():
            self._shared.round_and_write(parts, None if linear is None else moments.pop(linear), destinations)


def fill(destinations: Mapping[str, Tensor], stored: Iterable[StoredPart]) -> None:
    """Copies a checkpoint's tensors to those of a model that are there, by checkpoint name."""
    for each in stored:
        for name, tensor in each.arrange(each.tensor):
            if name in destinations:
                destinations[name].copy_(tensor)


def _input_moments(layer: nn.Module, compute: Callable[[], object], num_seen: int) -> dict[Linear, Tensor]:
    """Returns the second moments, float32 [in, in], of the inputs of each linear while a layer computes."""
    moments: dict[Linear, Tensor] = {}

    def see(linear: Any, arguments: tuple[Tensor, ...]) -> None:
        x = arguments[0][:num_seen].float()
        moments[linear] = x.T @ x / len(x)

    with ExitStack() as hooks:
        for linear in linears(layer):
            hooks.callback(linear.register_forward_pre_hook(see).remove)
        compute()
    return moments
