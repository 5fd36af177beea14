"""Weights, gradients and optimizer state; on the CPU shared by single-threaded workers.

Many small single-threaded operations use two cores better than two-threaded operations. Each worker computes the
gradients of its share of a batch, then updates its share of the parameters with all workers' gradients.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from models.training.learning.optimizer import Slot


class Barrier(Protocol):
    """A barrier between workers."""

    def wait(self) -> int:
        """Returns when all workers are here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory that all workers share."""

    weights: Tensor
    """float32 [values]: all parameters, one after the other."""
    gradients: Tensor
    """float32 [workers, values]"""
    first: Tensor
    """float32 [values]: optimizer state."""
    second: Tensor
    """float32 [values]: likewise."""
    orders: Tensor
    """float64 [2]: whether to continue, and the schedule's factor; written by the first worker."""
    sums: Tensor
    """float64 [workers, figures, 2]: sums and counts."""


def allocate(num_values: int, num_workers: int, num_figures: int, device: torch.device) -> Memory:
    """Allocates memory on a device; CPU memory can be shared with other processes."""

    def zeros(*shape: int) -> Tensor:
        values = torch.zeros(*shape, device=device)
        return values.share_memory_() if device.type == "cpu" else values

    return Memory(
        weights=zeros(num_values),
        gradients=zeros(num_workers, num_values),
        first=zeros(num_values),
        second=zeros(num_values),
        orders=torch.zeros(2, dtype=torch.float64).share_memory_(),
        sums=torch.zeros(num_workers, num_figures, 2, dtype=torch.float64).share_memory_(),
    )


def num_values(module: nn.Module) -> int:
    """Returns the number of values of all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def slots(module: nn.Module, memory: Memory) -> dict[str, Slot]:
    """Returns each parameter's slice, by name."""
    found: dict[str, Slot] = {}
    start = 0
    for name, parameter in module.named_parameters():
        part = slice(start, start + parameter.numel())
        found[name] = Slot(
            name=name,
            shape=tuple(parameter.shape),
            weight=memory.weights[part],
            gradients=memory.gradients[:, part],
            first=memory.first[part],
            second=memory.second[part],
        )
        start = part.stop
    return found


def store_weights(module: nn.Module, places: Mapping[str, Slot]) -> None:
    """Copies a module's weights into shared memory."""
    for name, parameter in module.named_parameters():
        places[name].weight.copy_(parameter.detach().flatten())


def attach_weights(module: nn.Module, places: Mapping[str, Slot]) -> None:
    """Makes a module use the shared weights."""
    for name, parameter in module.named_parameters():
        parameter.data = places[name].weight.view(places[name].shape)


def store_gradients(module: nn.Module, places: Mapping[str, Slot], worker: int) -> None:
    """Publishes a worker's gradients and clears them."""
    for name, parameter in module.named_parameters():
        target = places[name].gradients[worker]
        if parameter.grad is None:
            target.zero_()
        else:
            target.copy_(parameter.grad.flatten())
        parameter.grad = None


def share_of(places: Iterable[Slot], worker: int, num_workers: int) -> list[Slot]:
    """Returns the parameters that a worker updates; shares take about equally long."""
    loads = [0] * num_workers
    mine: list[Slot] = []
    for slot in sorted(places, key=_work, reverse=True):
        least = loads.index(min(loads))
        loads[least] += _work(slot)
        if least == worker:
            mine.append(slot)
    return mine


def _work(slot: Slot) -> int:
    return slot.weight.numel() * (4 if slot.by_muon else 1)
