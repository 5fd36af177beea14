"""Linears with weights packed in the layout that the native kernels read.

Only the packed copy of the weights is kept. Any shape can be packed, because tiles are padded with zeros.
"""

from collections.abc import Callable, Sequence
from ctypes import CDLL, byref
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.quantization import PACKED_INPUTS
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear, replace_linears
from glimpse.engine.worker.layers.mlp import GatedMLP
from glimpse.engine.worker.native.library import Activation, DType, Level, Norm, Weight, multiplies_tiles

HUGE_PAGE_BYTES = 2 << 20
ARENA_BYTES = 64 << 20
"""Allocated from the system at once: matrices share huge pages, because few are a multiple of one in size."""
ALIGNMENT_BYTES = 64
"""Size of a cache line."""


class WeightMemory:
    """Allocates memory that lives as long as the returned tensors."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._arena = torch.empty(0, dtype=torch.uint8)  # unused rest of the last arena

    def allocate(self, num_bytes: int) -> Tensor:
        """Returns uint8 [num_bytes], zeroed and aligned to cache lines."""
        if num_bytes > len(self._arena):
            self._arena = self._new_arena(max(num_bytes, ARENA_BYTES))
        used = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        memory, self._arena = self._arena[:num_bytes], self._arena[used:]
        return memory

    def _new_arena(self, num_bytes: int) -> Tensor:
        # Private, because shared memory, the default, does not use huge pages. Mapped directly, because memory that the
        # allocator has used before is on small pages already.
        memory = mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        arena = torch.frombuffer(memory, dtype=torch.uint8)
        arena = arena[-arena.data_ptr() % HUGE_PAGE_BYTES :]
        self._library.glimpse_advise_huge_pages(arena.data_ptr(), len(arena))
        return arena


_MOST_GROUP_INPUTS = 512
"""Inputs in a group of weights of 8 bits that the kernels take, as in types.h."""


class PackedLinear(nn.Module):
    """y = x Wᵀ + b for x in bfloat16 or float32, with W in the same type, in int8, or in groups of 4 or 8 bits."""

    def __init__(
        self,
        linear: Linear | Int8Linear | GroupQuantizedLinear,
        *,
        gated: bool,
        library: CDLL,
        level: Level,
        memory: WeightMemory,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Packs a linear.

        Args:
            linear: linear on the CPU; weights that are not quantized must be in `dtype`.
            gated: whether this is the first linear of a gated MLP, whose output halves are combined in pairs.
            dtype: of activations, bfloat16 or float32.
        """
        super().__init__()
        self.library, self._level, self._memory, self.dtype = library, level, memory, dtype
        rows, columns = len(linear.weight), linear.in_features
        self.in_features, self.sizes = linear.in_features, linear.sizes
        self._tensors: list[Tensor] = []  # tensors that `packed` points to
        self.packed = Weight(in_features=columns, out_features=rows, gated=gated, dtype=DType.of(dtype))
        match linear:
            case GroupQuantizedLinear():
                self._pack_groups(linear)
            case Int8Linear():
                self.packed.scale = self._pack_columns(linear.scale)
            case Linear():
                assert linear.weight.dtype is dtype
        if linear.bias is not None:
            self.packed.bias = self._pack_columns(linear.bias.float())
        self.num_bytes = library.glimpse_packed_bytes(byref(self.packed))
        self.packed.panels = self._allocate(self.num_bytes)
        library.glimpse_pack(byref(self.packed), linear.weight.contiguous().data_ptr())

    @property
    def widens_integers(self) -> bool:
        """Whether many rows are multiplied by weights of 4 or 8 bits once these are widened."""
        return bool(self.library.glimpse_widens_integers(self._level, byref(self.packed)))

    @property
    def multiplies_tiles(self) -> bool:
        """Whether matrix units multiply many rows."""
        return multiplies_tiles(self._level, self.dtype)

    @property
    def streamed_rows(self) -> int:
        """The most rows that read each part of the weights once, from memory."""
        return self.library.glimpse_streamed_rows(self._level, self.packed.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, in] → [rows, out]"""
        return self.compute(x, None, None)

    def compute(
        self,
        x: Tensor,
        norm: Norm | None,
        residual: Tensor | None,
        dtype: torch.dtype | None = None,
        adapted: Sequence[Any] = (None, None),
    ) -> Tensor:
        """norm(x) Wᵀ + b + residual: [rows, in] → [rows, out]. A gated linear takes no residual.

        The result is in the type of activations, or in `dtype`: float32. `adapted`: see `NativeOps`.
        """
        assert x.dtype is self.dtype
        x, dtype = x.contiguous(), dtype or self.dtype
        residual = None if residual is None else residual.contiguous()
        output = torch.empty(x.shape[0], self.packed.out_features, dtype=dtype)
        wide = dtype is torch.float32
        self.library.glimpse_linear(
            self._level,
            byref(self.packed),
            None if norm is None else byref(norm),
            x.data_ptr(),
            x.shape[0],
            Activation.IDENTITY,
            None if residual is None else residual.data_ptr(),
            output.data_ptr() if wide else None,
            None if wide else output.data_ptr(),
            *adapted,
        )
        return output

    def rows(self, indices: Tensor) -> Tensor:
        """Returns rows of W, [indices, in]. W must not be int8 with a scale for each output feature."""
        indices = indices.contiguous()
        output = torch.empty(len(indices), self.packed.in_features, dtype=self.dtype)
        self.library.glimpse_unpack_rows(byref(self.packed), indices.data_ptr(), len(indices), output.data_ptr())
        return output

    def _pack_columns(self, values: Tensor) -> int:
        packed = self._allocate(4 * self.library.glimpse_packed_columns(byref(self.packed)))
        self.library.glimpse_pack_columns(byref(self.packed), values.contiguous().data_ptr(), packed)
        return packed

    def _pack_groups(self, linear: GroupQuantizedLinear) -> None:
        self.packed.group_size, self.packed.group_bits = _packed_group_size(linear), linear.bits
        self.packed.byte_inputs = linear.byte_inputs
        if linear.input_order is not None:
            self._tensors.append(linear.input_order.to(torch.int32))
            self.packed.input_order = self._tensors[-1].data_ptr()
        parts, pack_groups = linear.group_size // self.packed.group_size, self.library.glimpse_pack_groups
        self.packed.group_scale = self._pack_by_group(linear.scale.float(), parts, pack_groups)
        if linear.zero.is_floating_point():
            self.packed.group_minimum = self._pack_by_group(linear.zero.float(), parts, pack_groups)
        else:
            self.packed.group_zero = self._pack_by_group(linear.zero, parts, self.library.glimpse_pack_zeros)

    def _pack_by_group(self, values: Tensor, parts: int, pack: Callable[..., None]) -> int:
        """Packs numbers of groups, [groups, out], each of which the kernels divide into `parts`."""
        values = values.repeat_interleave(parts, 0)
        packed = self._allocate(values.itemsize * self.library.glimpse_packed_groups(byref(self.packed)))
        pack(byref(self.packed), values.data_ptr(), packed)
        return packed

    def _allocate(self, num_bytes: int) -> int:
        self._tensors.append(self._memory.allocate(num_bytes))
        return self._tensors[-1].data_ptr()


def _packed_group_size(linear: GroupQuantizedLinear) -> int:
    """Returns the inputs of a group as the kernels take it: a large group of 8 bits is divided into equal ones."""
    if linear.bits == 4 or linear.group_size < PACKED_INPUTS:
        return linear.group_size
    sizes = range(PACKED_INPUTS, _MOST_GROUP_INPUTS + 1, PACKED_INPUTS)
    return max(size for size in sizes if linear.group_size % size == 0)


def pack(root: nn.Module, library: CDLL, level: Level, dtype: torch.dtype = torch.bfloat16) -> None:
    """Replaces every linear by a `PackedLinear` for activations in `dtype`."""
    memory = WeightMemory(library)

    def packed(linear: Linear | Int8Linear | GroupQuantizedLinear, parent: nn.Module) -> PackedLinear:
        gated = isinstance(parent, GatedMLP) and linear is parent.gate_up_proj
        return PackedLinear(linear, gated=gated, library=library, level=level, memory=memory, dtype=dtype)

    replace_linears(root, (Linear, Int8Linear, GroupQuantizedLinear), packed)
    library.glimpse_return_freed_memory()
