"""A GGUF file in Q4_K_M: its tensors are those of another GGUF file, rounded in the order in which that has them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from glimpse.engine.checkpoint.gguf import names
from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.writer import GgufWriter
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.gguf_weights import as_in_checkpoints, read_tensor
from glimpse.engine.worker.loading.weights import checkpoint_name
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.quantize.blocks import Blocks, round_blocks
from glimpse.engine.worker.quantize.decoder import by_layer
from glimpse.engine.worker.quantize.layers import StoredMatrix, StoredPart
from glimpse.engine.worker.quantize.rounding import Factor, Method

SOURCE_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""Types whose weights are good enough to be rounded."""
_SOURCE_TYPE = re.compile(rf"[-.]({'|'.join(SOURCE_TYPES)})$", re.IGNORECASE)


def new_name(file: Path) -> str:
    """Returns the name of a file in Q4_K_M, by that of the one that it is made of, or of the first of several."""
    stem = re.sub(r"-00001-of-\d{5}$", "", file.stem)
    return f"{_SOURCE_TYPE.sub('', stem)}-Q4_K_M.gguf"


class GgufTensors:
    """The tensors of a GGUF file, as that has them; see `StoredTensors`."""

    def __init__(self, gguf: Gguf, model: Model, text: TextConfig) -> None:
        self._gguf, self._model, self._text = gguf, model, text
        self.layers, self.others = by_layer(((name, self.checkpoint_name(name)) for name in gguf.tensors), model, text)

    def checkpoint_name(self, name: str) -> str:
        """See `StoredTensors`."""
        return checkpoint_name(names.checkpoint_name(self._gguf, name), self._model.renamed_prefixes)

    def whole(self, name: str) -> StoredPart:
        """See `StoredTensors`."""
        source = self.checkpoint_name(name)

        def arrange(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
            for part, piece in self._model.split_weight(
                source, as_in_checkpoints(self._gguf, name, tensor), self._text
            ):
                yield from self._model.arrange(part, piece, self._text)

        tensor = read_tensor(self._gguf, name).float()
        if not tensor.isfinite().all():
            raise CheckpointError(f"GGUF tensor {name!r}: expected finite weights, got others")
        return StoredPart(name=name, tensor=tensor, arrange=arrange)

    def parts(self, names: Sequence[str]) -> Iterator[StoredPart]:
        """See `StoredTensors`."""
        return map(self.whole, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRounding:
    """Rounds a file's matrices to blocks."""

    gguf: Gguf
    types: Mapping[str, str]
    """The new type of each matrix, by name."""
    method: Method

    def round_parts(self, parts: Sequence[StoredPart], moments: Tensor | None) -> Iterator[Blocks | None]:
        """See `Round`."""
        own: Tensor | None = None
        factor: Factor | None = None
        for part in parts:
            kind = self.types.get(part.name)
            if kind is None:
                yield None
                continue
            if own is None and moments is not None:
                own = self._as_stored(moments, part.name)
                factor = Factor.of(own) if self.method == "compensated" else None
            importance = None if own is None else own.diagonal()
            yield round_blocks(kind, part.tensor, importance, factor, self.method)

    def _as_stored(self, moments: Tensor, name: str) -> Tensor:
        """Returns moments of inputs in the order in which the file has columns."""
        if names.change_of(self.gguf, name) is not Change.TILED_INPUTS:
            return moments
        columns = as_in_checkpoints(self.gguf, name, torch.arange(len(moments))[None])[0]
        stored = torch.empty_like(moments)
        stored[columns[:, None], columns] = moments
        return stored


@dataclass(slots=True, kw_only=True)
class BlockWriter:
    """Writes a file in Q4_K_M."""

    writer: GgufWriter
    counts: Counter[str] = field(default_factory=Counter[str])
    """How many matrices of each type were written."""

    def write(self, name: str, tensor: Tensor | StoredMatrix) -> None:
        """See `Write`."""
        if isinstance(tensor, Blocks):
            self.counts[tensor.kind] += 1
            self.writer.write(name, tensor.octets.flatten().numpy().data)
        else:
            self.writer.copy(name)
