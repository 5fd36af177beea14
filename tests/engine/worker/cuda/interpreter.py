"""Fixes three bugs of Triton 3.6's interpreter, so that it computes the same as a GPU.

Loop bounds are arrays of one value, which NumPy 2.4 does not accept as indices; products of bfloat16 multiply the bits
as integers; and conversions to bfloat16 truncate instead of rounding.
"""

# pyright: reportPrivateUsage=false
# (the bugs are in private functions)

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

Array = npt.NDArray[Any]


def widened(bits: Array) -> Array:
    """Converts the bits of bfloat16, uint16, to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: Array) -> Array:
    """Rounds float32 to the bits of bfloat16, uint16; to nearest, ties to even. Does not support NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def repair() -> None:
    """Applies the fixes. To be called once per process."""
    builder: Any = interpreter.InterpreterBuilder
    patch_tensor: Any = interpreter._patch_lang_tensor
    create_dot, cast = builder.create_dot, builder.cast_impl

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [
            interpreter.TensorHandle(widened(x.data), tl.float32) if x.dtype.scalar == tl.bfloat16 else x
            for x in (a, b)
        ]
        return create_dot(self, *wide, *rest)

    def rounding_cast(self: Any, source: Any, target: Any) -> Any:
        match source.dtype.scalar, target.scalar:
            case tl.bfloat16, tl.float32:
                return interpreter.TensorHandle(widened(source.data), tl.float32)
            case tl.float32, tl.bfloat16:
                return interpreter.TensorHandle(rounded(source.data), tl.bfloat16)
            case _:
                return cast(self, source, target)

    interpreter._patch_lang_tensor = patch_tensor_and_index
    builder.create_dot = dot
    builder.cast_impl = rounding_cast
