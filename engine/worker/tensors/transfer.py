"""Transfers between host and device, in which neither waits for the other. On the CPU both use the same memory."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_ALIGNMENT = 16
"""In numbers of 8 bytes. Kernels are compiled for the alignment of their arguments; one alignment avoids variants."""


def upload(arrays: Mapping[str, Numbers], device: torch.device) -> dict[str, Tensor]:
    """Returns the arrays as tensors on a device, under the same names, in a single transfer."""
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    values = list(arrays.values())
    # Pinned memory is copied asynchronously; torch does not reuse it before the copy has ended.
    staging = torch.empty(packed_size(values), dtype=torch.int64, pin_memory=True)
    pack(values, staging.numpy())
    return dict(zip(arrays, unpack(staging.to(device, non_blocking=True), values), strict=True))


def upload_bytes(data: memoryview, device: torch.device) -> Tensor:
    """Returns bytes as a uint8 tensor on a device."""
    source = np.frombuffer(data, dtype=np.uint8)
    if device.type == "cpu":
        return torch.from_numpy(source.copy())  # received data must not be written to
    staging = torch.empty(source.size, dtype=torch.uint8, pin_memory=True)
    staging.numpy()[:] = source
    return staging.to(device, non_blocking=True)


def packed_size(arrays: Sequence[Numbers]) -> int:
    """Returns how many numbers of 8 bytes the packed arrays take."""
    return sum(map(_padded, arrays))


def pack(arrays: Sequence[Numbers], target: npt.NDArray[np.int64]) -> None:
    """Writes the arrays into `target`, one after the other."""
    start = 0
    for array in arrays:
        target[start : start + array.size] = np.ascontiguousarray(array).reshape(-1).view(np.int64)
        start += _padded(array)


def unpack(packed: Tensor, arrays: Sequence[Numbers]) -> list[Tensor]:
    """Returns views of packed arrays, with the shapes and types of `arrays`."""
    tensors: list[Tensor] = []
    start = 0
    for array in arrays:
        dtype = torch.float64 if array.dtype == np.float64 else torch.int64
        tensors.append(packed[start : start + array.size].view(dtype).view(array.shape))
        start += _padded(array)
    return tensors


def _padded(array: Numbers) -> int:
    return -(-array.size // _ALIGNMENT) * _ALIGNMENT


class Fence:
    """Marks a point in a device's work."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> None:
        """Waits until the work launched before the fence is done, but for nothing launched later."""
        if self._event is not None:
            self._event.synchronize()


class Stopwatch:
    """Measures how long a device takes for what is launched while a block runs."""

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        self._began = self._ended = 0.0
        if device.type == "cuda":
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def __enter__(self) -> Self:
        self._began = perf_counter()
        if self._events is not None:
            self._events[0].record()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = perf_counter()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """Returns the duration. Waits until the device is past the block."""
        if self._events is None:
            return self._ended - self._began
        began, ended = self._events
        ended.synchronize()
        return began.elapsed_time(ended) / 1000


class Download:
    """Copies a tensor to the host in the background."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
        self._fence = Fence(tensor.device)

    def wait(self) -> Tensor:
        """Waits for the copy and returns the tensor on the host."""
        self._fence.wait()
        return self._host
