"""Restores matrices that a checkpoint stores in FP8 with a scale for each block, as DeepSeek-V3 (arXiv 2412.19437) and
the published FP8 checkpoints of Qwen3 and Qwen3-VL do. What follows treats them as if they had not been quantized."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from glimpse.engine.checkpoint.quantization import Fp8Blocks
from glimpse.engine.errors import CheckpointError

Splitter: TypeAlias = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""From a stored tensor and its checkpoint name to its parts, which the model names separately."""


def restoring(blocks: Fp8Blocks | None, split: Splitter) -> Splitter:
    """Returns a splitter of one checkpoint's tensors, of which each is given once, that first restores them.

    Args:
        blocks: size of the blocks; None if the checkpoint has none.
        split: splits restored tensors.
    """
    if blocks is None:
        return split
    restore = BlockRestorer(blocks)
    return lambda name, stored: (part for restored in restore(name, stored) for part in split(*restored))


class BlockRestorer:
    """Restores a matrix once its values and its scales have been given, in any order."""

    def __init__(self, blocks: Fp8Blocks) -> None:
        self._blocks = blocks
        self._waiting: dict[str, Tensor] = {}

    def __call__(self, name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
        """
        Raises:
            CheckpointError: the scales do not fit the values.
        """
        stem, _, kind = name.rpartition(".")
        is_scale = kind == "weight_scale_inv"
        if not is_scale and stored.dtype is not torch.float8_e4m3fn:
            yield name, stored
        elif (other := self._waiting.pop(stem, None)) is None:
            self._waiting[stem] = stored
        else:
            values, scales = (other, stored) if is_scale else (stored, other)
            yield f"{stem}.weight", self._restore(stem, values, scales)

    def _restore(self, stem: str, values: Tensor, scales: Tensor) -> Tensor:
        """Returns float32 [out, in]. Blocks at the right and bottom edges may be smaller."""
        rows, columns = values.shape
        expected = (-(-rows // self._blocks.rows), -(-columns // self._blocks.columns))
        if scales.shape != expected:
            raise CheckpointError(
                f"tensor '{stem}.weight_scale_inv': expected shape {[*expected]} for blocks of {self._blocks.rows} × "
                f"{self._blocks.columns}, got {[*scales.shape]}"
            )
        restored = values.float()
        factors = scales.float().repeat_interleave(self._blocks.rows, dim=0)[:rows]
        for block, part in enumerate(restored.split(self._blocks.columns, dim=1)):
            part.mul_(factors[:, block : block + 1])
        return restored
