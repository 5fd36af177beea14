"""Triton's interpreter, made to compute what a GPU does: three faults of version 3.6 are put right.

Numbers that bound a loop are arrays of one value, which NumPy 2.4 no longer takes for indices; products of bfloat16
multiply the bits as if they were integers; and what becomes bfloat16 is cut off instead of rounded.
"""

# pyright: reportPrivateUsage=false
# (it has no other place to be put right)

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

Array = npt.NDArray[Any]


def widened(bits: Array) -> Array:
    """uint16, the bits of bfloat16 → float32"""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: Array) -> Array:
    """float32 → uint16, the bits of the nearest bfloat16, the even one of two; not for NaN"""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def repair() -> None:
    """Once in a process."""
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
