"""Numbers on their way between host and device, for neither of which the other has to wait. Knows no step.

On the CPU there is no way to go: the same memory is both.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_ALIGNMENT = 16
"""Numbers, of 8 bytes. Kernels are compiled for how their arguments are aligned: let all be alike."""


def upload(arrays: Sequence[Numbers], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on a device, all in one transfer."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    # From pinned memory a copy runs by itself; torch does not give it to others before it has ended.
    staging = torch.empty(packed_size(arrays), dtype=torch.int64, pin_memory=True)
    pack(arrays, staging.numpy())
    return unpack(staging.to(device, non_blocking=True), arrays)


def upload_bytes(data: memoryview, device: torch.device) -> Tensor:
    """Bytes as a tensor on a device, uint8."""
    source = np.frombuffer(data, dtype=np.uint8)
    if device.type == "cpu":
        return torch.from_numpy(source.copy())  # what others sent must not be written to
    staging = torch.empty(source.size, dtype=torch.uint8, pin_memory=True)
    staging.numpy()[:] = source
    return staging.to(device, non_blocking=True)


def packed_size(arrays: Sequence[Numbers]) -> int:
    """How many numbers of 8 bytes the arrays take, one after the other."""
    return sum(map(_padded, arrays))


def pack(arrays: Sequence[Numbers], target: npt.NDArray[np.int64]) -> None:
    """Writes the arrays one after the other."""
    start = 0
    for array in arrays:
        target[start : start + array.size] = np.ascontiguousarray(array).reshape(-1).view(np.int64)
        start += _padded(array)


def unpack(packed: Tensor, arrays: Sequence[Numbers]) -> list[Tensor]:
    """Views of what was packed, with the shapes and types of these arrays."""
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
    """What was launched on a device so far."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> None:
        """Waits until all of it is done, and for nothing that was launched later."""
        if self._event is not None:
            self._event.synchronize()


class Download:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
        self._fence = Fence(tensor.device)

    def wait(self) -> Tensor:
        """The tensor on the host, as soon as it is there."""
        self._fence.wait()
        return self._host
