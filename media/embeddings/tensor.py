"""Dense tensors as element type, shape and bytes, because NumPy has no bfloat16."""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from glimpse.media.errors import MediaError, MediaErrorCode

MAX_DIMENSIONS = 8
_VALUES_AT_ONCE = 1 << 20


class TensorType(StrEnum):
    """Supported element types, by torch's names."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"

    @property
    def num_bytes(self) -> int:
        """Size of one element."""
        return _NUM_BYTES[self]


_NUM_BYTES = {TensorType.FLOAT32: 4, TensorType.FLOAT16: 2, TensorType.BFLOAT16: 2, TensorType.INT64: 8}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensor:
    """A tensor whose type, shape and bytes are consistent. Created by `make_tensor`."""

    dtype: TensorType
    shape: tuple[int, ...]
    """Dimensions, each at least 1."""
    data: memoryview
    """Elements as flat bytes: little-endian, row-major, without padding."""


def make_tensor(dtype: TensorType, shape: tuple[int, ...], data: bytes | bytearray | memoryview) -> Tensor:
    """Creates a tensor from flat bytes, which must not change afterwards.

    Raises:
        MediaError: INVALID_EMBEDDINGS if the bytes do not fit the type and shape.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise invalid(f"expected a tensor of at most {MAX_DIMENSIONS} dimensions, got {len(shape)}")
    for dimension in shape:
        if dimension < 1:
            raise invalid(f"expected dimensions of at least 1, got {dimension}")
    num_claimed = math.prod(shape) * dtype.num_bytes
    if num_claimed != len(data):
        claimed = f"{num_claimed} bytes" if num_claimed < 1 << 63 else "more than 2^63 bytes"
        raise invalid(f"expected {claimed} for a {dtype} tensor of its shape, got {len(data)}")
    return Tensor(dtype=dtype, shape=shape, data=memoryview(data))


def rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Returns a slice of the outermost dimension, within its bounds."""
    num_bytes = math.prod(tensor.shape[1:]) * tensor.dtype.num_bytes
    return make_tensor(
        tensor.dtype, (stop - start, *tensor.shape[1:]), tensor.data[start * num_bytes : stop * num_bytes]
    )


def integers(tensor: Tensor) -> list[int]:
    """Returns the elements of an INT64 tensor."""
    return np.frombuffer(tensor.data, "<i8").tolist()


def largest_magnitude(tensor: Tensor) -> float:
    """Returns the largest magnitude in a tensor of floats; NaN if any element is. Works in chunks to save memory."""
    largest = 0.0
    step = _VALUES_AT_ONCE * tensor.dtype.num_bytes
    for start in range(0, len(tensor.data), step):
        magnitude = np.abs(_floats(tensor.dtype, tensor.data[start : start + step])).max()
        largest = float(np.maximum(largest, magnitude))  # propagates NaN
    return largest


def invalid(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_EMBEDDINGS, message)


def _floats(dtype: TensorType, data: memoryview) -> npt.NDArray[np.floating]:
    if dtype is TensorType.BFLOAT16:  # bfloat16 is the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f4" if dtype is TensorType.FLOAT32 else "<f2")
