"""Writes a GGUF file that has the metadata of another and its tensors in other types."""

import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import TracebackType

from glimpse.engine.checkpoint.gguf.header import ALIGNMENT, DEFAULT_ALIGNMENT, MAGIC, Gguf
from glimpse.engine.checkpoint.gguf.tensor_types import TENSOR_TYPES

_VERSION = 3
_UINT32 = 4
_OF_SPLIT = ("split.no", "split.count", "split.tensors.count")
"""Keys of a file that is one of several, which the new one is not."""
_NUMBERS: Mapping[str, int] = {kind.name: number for number, kind in TENSOR_TYPES.items()}


class GgufWriter:
    """A new file. The size of each tensor is known, so they may be written in any order.

    Use it as a context manager. All entries of the metadata but those that change are copied byte for byte.
    """

    def __init__(self, file: Path, source: Gguf, types: Mapping[str, str], changed: Mapping[str, int]) -> None:
        """
        Args:
            file: where to; it must not exist.
            source: the other file.
            types: of the tensors that get another type, whose rows are whole blocks of it.
            changed: numbers of the metadata that differ from the source's, by key.
        """
        self._source = source
        alignment = int(source.get(ALIGNMENT) or DEFAULT_ALIGNMENT)
        described = list[bytes]()
        self._places: dict[str, tuple[int, int]] = {}
        offset = 0
        for name, tensor in source.tensors.items():
            kind = TENSOR_TYPES[_NUMBERS[types.get(name, tensor.type.name)]]
            size = prod(tensor.shape) // kind.block_size * kind.block_bytes
            sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
            described.append(_text(name) + sizes + struct.pack("<IQ", _NUMBERS[kind.name], offset))
            self._places[name] = (offset, size)
            offset += -(-size // alignment) * alignment
        numbers = {key: _text(key) + struct.pack("<II", _UINT32, number) for key, number in changed.items()}
        entries = {key: entry for key, entry in source.entries() if key not in _OF_SPLIT} | numbers
        counts = struct.pack("<IQQ", _VERSION, len(described), len(entries))
        header = b"".join((MAGIC, counts, *entries.values(), *described))
        self._start = -(-len(header) // alignment) * alignment
        self.num_bytes = sum(size for _, size in self._places.values())
        """Size of all tensors."""
        self.file_bytes = self._start + offset
        """Size of the file."""
        self._unwritten = {*self._places}
        self._file = file.open("xb")
        self._file.write(header)

    def __enter__(self) -> "GgufWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        if kind is None:
            assert not self._unwritten, self._unwritten
            self._file.truncate(self.file_bytes)
        self._file.close()

    def copy(self, name: str) -> None:
        """Writes a tensor as the source has it."""
        tensor = self._source.tensors[name]
        self.write(name, memoryview(tensor.data)[tensor.offset : tensor.offset + tensor.num_bytes])

    def write(self, name: str, blocks: memoryview | bytes) -> None:
        """Writes a tensor's blocks."""
        offset, size = self._places[name]
        assert len(blocks) == size, name
        self._unwritten.remove(name)
        self._file.seek(self._start + offset)
        self._file.write(blocks)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data
