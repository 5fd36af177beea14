"""Dense tensors: the type of their elements, a shape, the elements' bytes. Knows no files, nor what tensors are for.

Bytes rather than arrays, because NumPy has no bfloat16.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from glimpse.media.errors import MediaError, MediaErrorCode

MAX_DIMENSIONS = 8
_VALUES_AT_ONCE = 1 << 20


class TensorType(StrEnum):
    """The types of elements that are understood, under the names that torch has for them."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"

    @property
    def num_bytes(self) -> int:
        """Of one element."""
        return _NUM_BYTES[self]


_NUM_BYTES = {TensorType.FLOAT32: 4, TensorType.FLOAT16: 2, TensorType.BFLOAT16: 2, TensorType.INT64: 8}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensor:
    """A tensor whose type, shape and bytes fit each other: made by `make_tensor`."""

    dtype: TensorType
    shape: tuple[int, ...]
    """Dimensions, outermost first, each at least 1."""
    data: memoryview
    """The elements, little-endian, row-major, without padding; flat bytes."""


def make_tensor(dtype: TensorType, shape: tuple[int, ...], data: bytes | bytearray | memoryview) -> Tensor:
    """A tensor of bytes that are flat and that nobody writes to any more.

    Raises:
        MediaError: INVALID_EMBEDDINGS where they are not those of such a tensor.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise invalid(f"the tensor has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are accepted")
    for dimension in shape:
        if dimension < 1:
            raise invalid(f"the tensor has a dimension of {dimension}")
    num_claimed = math.prod(shape) * dtype.num_bytes
    if num_claimed != len(data):
        claimed = f"{num_claimed} bytes" if num_claimed < 1 << 63 else "more bytes than there can be"
        raise invalid(f"a {dtype} tensor of its shape has {claimed}, and {len(data)} are there")
    return Tensor(dtype=dtype, shape=shape, data=memoryview(data))


def rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some of the outermost dimension, which has them."""
    num_bytes = math.prod(tensor.shape[1:]) * tensor.dtype.num_bytes
    return make_tensor(
        tensor.dtype, (stop - start, *tensor.shape[1:]), tensor.data[start * num_bytes : stop * num_bytes]
    )


def whole_numbers(tensor: Tensor) -> list[int]:
    """The elements of an INT64 tensor."""
    return np.frombuffer(tensor.data, "<i8").tolist()


def largest_magnitude(tensor: Tensor) -> float:
    """Of the elements of a tensor of floats; NaN where one of them is. Takes memory for a few of them at a time."""
    largest = 0.0
    step = _VALUES_AT_ONCE * tensor.dtype.num_bytes
    for start in range(0, len(tensor.data), step):
        part = np.abs(_floats(tensor.dtype, tensor.data[start : start + step])).max()
        largest = float(np.maximum(largest, part))  # of a number and NaN it is NaN
    return largest


def invalid(message: str) -> MediaError:
    """The error for a tensor that is not what it should be."""
    return MediaError(MediaErrorCode.INVALID_EMBEDDINGS, message)


def _floats(dtype: TensorType, data: memoryview) -> npt.NDArray[np.floating]:
    if dtype is TensorType.BFLOAT16:  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f4" if dtype is TensorType.FLOAT32 else "<f2")
