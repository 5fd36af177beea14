"""Converts torch tensors, NumPy arrays and lists of integers to `glimpse.media.embeddings.tensor.Tensor`."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from glimpse.media.embeddings.tensor import Tensor, TensorType, invalid, make_tensor


def is_of_floats(value: object) -> bool:
    """Returns whether the value is a torch tensor of floats that is no video. An image is never a tensor of floats."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim != 4


def tensor_of(value: object) -> Tensor:
    """Copies a tensor to host memory.

    Raises:
        MediaError: INVALID_EMBEDDINGS if it is sparse, quantised, without data, or of another type.
    """
    if isinstance(value, torch.Tensor):
        return _of_torch(value)
    if isinstance(value, list | tuple):
        return _of_array(_integers(value))
    if isinstance(value, np.ndarray):
        return _of_array(value)
    raise invalid(f"expected a tensor or an array, got {type(value).__name__}")


def _of_torch(tensor: torch.Tensor) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise invalid("expected a dense tensor, got a sparse, quantized, nested or meta one")
    dtype = _type_named(str(tensor.dtype).removeprefix("torch."))
    flat = tensor.detach().cpu().resolve_neg().contiguous().flatten()
    return make_tensor(dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes())


def _of_array(array: npt.NDArray[Any]) -> Tensor:
    dtype = _type_named(array.dtype.name)
    return make_tensor(dtype, array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes())


def _integers(value: list[Any] | tuple[Any, ...]) -> npt.NDArray[np.int64]:
    try:
        array = np.array(value)
    except ValueError as error:  # rows of different lengths
        raise invalid("expected a tensor, or a list of integers") from error
    if array.dtype != np.int64:
        raise invalid("expected a tensor, or a list of integers")
    return array


def _type_named(name: str) -> TensorType:
    try:
        return TensorType(name)
    except ValueError as error:
        raise invalid(f"expected a tensor of type {', '.join(TensorType)}, got {name}") from error
