"""Reads GGUF files, as llama.cpp writes them: metadata and tensors in one file, or the latter in several.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. A header is untrusted
input: it is checked before anything is allocated that it asks for, and strings in arrays are decoded only when asked
for.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from glimpse.engine.checkpoint.gguf.tensor_types import SERVED_TYPES, TENSOR_TYPES, TensorType
from glimpse.engine.errors import CheckpointError

MAGIC = b"GGUF"

Scalar: TypeAlias = int | float | bool | str

_MAX_HEADER_BYTES = 32 << 20
"""Limit of everything before the tensors' values. Vocabularies of 262144 tokens with their merges take about 15 MiB."""
_MAX_ENTRIES = 1 << 16
"""Limit of metadata, and of tensors."""
_MAX_ARRAY_LENGTH = 1 << 21
_MAX_NAME_BYTES = 256
"""Limit of keys and of names of tensors; llama.cpp has 64 for the latter."""
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32
ALIGNMENT = "general.alignment"

_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}
"""`struct`'s character of each type of number, and numpy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor as the header describes it."""

    type: TensorType
    shape: tuple[int, ...]
    """Output features first, as in torch; files have the sizes in the other order."""
    data: mmap.mmap = field(repr=False)
    """The file that has it."""
    offset: int
    """Offset of its first byte in the file."""
    num_bytes: int


class _Array(NamedTuple):
    """An array in the header that was checked and not read."""

    type: int
    length: int
    offset: int


class Gguf:
    """A file that is mapped into memory; if it is the first of several, all of them.

    Raises:
        CheckpointError: a file cannot be read, is no GGUF file, or its header is invalid.
    """

    def __init__(self, path: Path) -> None:
        self.data = _mapped(path)
        header = _Header(self.data)
        self._values = header.metadata()
        self._places = header.places
        self.tensors: Mapping[str, GgufTensor] = header.tensors(self._values)
        """By name, in the order of the headers."""
        if (count := self._values.get("split.count")) not in (None, 0, 1):
            self.tensors |= self._further_tensors(split_files(path), count)

    def _further_tensors(self, files: Sequence[Path], count: object) -> dict[str, GgufTensor]:
        if len(files) != count:
            _refuse(
                "metadata: 'split.count'",
                f"{len(files)}, as the name of the first says (NAME-00001-of-COUNT.gguf)",
                f"{count!r:.80}",
            )
        found: dict[str, GgufTensor] = {}
        for file in files[1:]:
            header = _Header(_mapped(file))
            more = header.tensors(header.metadata())
            if twice := (self.tensors.keys() | found.keys()) & more.keys():
                _refuse(f"tensor {min(twice)!r}", "it in one file", "it in two")
            found |= more
        return found

    def get(self, key: str) -> Scalar | None:
        """Returns a number, a truth value or a text of the metadata; None without it.

        Raises:
            CheckpointError: it is an array.
        """
        value = self._values.get(key)
        if isinstance(value, _Array):
            raise CheckpointError(f"GGUF metadata: {key!r}: expected one value, got an array of {value.length}")
        return value

    def has(self, key: str) -> bool:
        """Returns whether the metadata has a key."""
        return key in self._values

    def numbers(self, key: str) -> NDArray[np.generic] | None:
        """Returns an array of numbers; None without it. Raises CheckpointError if it is anything else."""
        array = self._array(key)
        if array is None:
            return None
        if array.type == _STRING:
            raise CheckpointError(f"GGUF metadata: {key!r}: expected an array of numbers, got texts")
        return np.frombuffer(self.data, f"<{_FORMATS[array.type]}", array.length, array.offset)

    def texts(self, key: str) -> list[str] | None:
        """Returns an array of texts; None without it. Raises CheckpointError if it is anything else, or not UTF-8."""
        array = self._array(key)
        if array is None:
            return None
        if array.type != _STRING:
            raise CheckpointError(f"GGUF metadata: {key!r}: expected an array of texts, got numbers")
        header, found = _Header(self.data, array.offset), list[str]()
        for _ in range(array.length):
            found.append(header.text(f"metadata: {key!r}"))
        return found

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """Yields each key of the metadata, and the bytes that store it with its value."""
        return ((key, self.data[place]) for key, place in self._places.items())

    def check_types(self) -> None:
        """Raises CheckpointError if a tensor's type is not served."""
        for name, tensor in self.tensors.items():
            if tensor.type.name not in SERVED_TYPES:
                _refuse(f"tensor {name!r}: type", f"one of {', '.join(SERVED_TYPES)}", tensor.type.name)

    def _array(self, key: str) -> _Array | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, _Array):
            raise CheckpointError(f"GGUF metadata: {key!r}: expected an array, got {value!r:.80}")
        return value


class _Header:
    """Reads a header from its start, or a part of it from an offset."""

    def __init__(self, data: mmap.mmap, offset: int = 0) -> None:
        self._data = data
        self._offset = offset
        self._end = min(len(data), _MAX_HEADER_BYTES)
        self.places: dict[str, slice] = {}
        """Where each key of the metadata is stored, with its value."""

    def metadata(self) -> dict[str, Scalar | _Array]:
        """Reads what precedes the tensors, and remembers how many there are."""
        if self._data[:4] != MAGIC:
            _refuse(
                "",
                "a checkpoint's folder or a file that begins with 'GGUF'",
                f"one that begins with {self._data[:4]!r}",
            )
        self._take(4, "magic")
        (version,) = self._unpack("I", "version")
        if version not in (2, 3):
            big = " (written on a big-endian machine)" if version and version & 0xFFFF == 0 else ""
            _refuse("version", "2 or 3", f"{version}{big}")
        self._num_tensors, num_values = self._unpack("QQ", "counts")
        for name, count in (("tensor_count", self._num_tensors), ("metadata_kv_count", num_values)):
            if count > _MAX_ENTRIES:
                _refuse(name, f"at most {_MAX_ENTRIES}", str(count))
        values: dict[str, Scalar | _Array] = {}
        for _ in range(num_values):
            start, key = self._offset, self._name("metadata")
            if key in values:
                _refuse(f"metadata: {key!r}", "each key once", "it twice")
            values[key] = self._value(key)
            self.places[key] = slice(start, self._offset)
        return values

    def tensors(self, values: Mapping[str, Scalar | _Array]) -> dict[str, GgufTensor]:
        """Reads the descriptions of the tensors, which follow the metadata."""
        alignment = values.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if (
            type(alignment) is not int
            or not 8 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)  # two powers of two have no digit in common
        ):
            _refuse(f"metadata: '{ALIGNMENT}'", f"a power of two from 8 to {_MAX_ALIGNMENT}", f"{alignment!r:.80}")
        found: dict[str, GgufTensor] = {}
        for _ in range(self._num_tensors):
            name = self._name("tensors")
            if name in found:
                _refuse(f"tensor {name!r}", "each name once", "it twice")
            found[name] = self._tensor(name, alignment)
        start = -(-self._offset // alignment) * alignment
        placed = {name: replace(each, offset=start + each.offset) for name, each in found.items()}
        self._check_places(placed)
        return placed

    def _tensor(self, name: str, alignment: int) -> GgufTensor:
        what = f"tensor {name!r}"
        (num_dims,) = self._unpack("I", what)
        if not 1 <= num_dims <= _MAX_DIMS:
            _refuse(f"{what}: dimensions", f"1 to {_MAX_DIMS}", str(num_dims))
        sizes: tuple[int, ...] = self._unpack("Q" * num_dims, what)
        number, offset = self._unpack("IQ", what)
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            known = ", ".join(each.name for each in TENSOR_TYPES.values())
            _refuse(f"{what}: type", f"one of {known}", f"number {number}")
        if not all(sizes) or sizes[0] % kind.block_size:
            _refuse(f"{what}: shape", f"rows of whole blocks of {kind.block_size} values", f"{[*sizes]}")
        if offset % alignment:
            _refuse(f"{what}: offset", f"a multiple of the alignment, {alignment}", str(offset))
        num_bytes = prod(sizes) // kind.block_size * kind.block_bytes
        return GgufTensor(type=kind, shape=sizes[::-1], data=self._data, offset=offset, num_bytes=num_bytes)

    def _check_places(self, tensors: Mapping[str, GgufTensor]) -> None:
        last_name, end = "", 0
        for name, tensor in sorted(tensors.items(), key=lambda each: each[1].offset):
            if tensor.offset < end:
                _refuse(f"tensor {name!r}: offset", f"one behind the tensor {last_name!r}", "one within it")
            last_name, end = name, tensor.offset + tensor.num_bytes
            if end > len(self._data):
                _refuse(f"tensor {name!r}", f"an end within the file's {len(self._data)} bytes", str(end))

    def text(self, what: str) -> str:
        """Reads a text."""
        (length,) = self._unpack("Q", what)
        try:
            return self._take(length, what).decode()
        except UnicodeDecodeError:
            _refuse(what, "UTF-8", "other bytes")

    def _name(self, where: str) -> str:
        (length,) = struct.unpack("<Q", self._peek(8, where))
        if not 1 <= length <= _MAX_NAME_BYTES:
            _refuse(where, f"names of 1 to {_MAX_NAME_BYTES} bytes", str(length))
        name = self.text(where)
        if not _NAME.fullmatch(name):
            _refuse(where, "names of letters, digits and . _ -", f"{name!r:.80}")
        return name

    def _value(self, key: str) -> Scalar | _Array:
        what = f"metadata: {key!r}"
        (kind,) = self._unpack("I", what)
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self._skipped_array(what)
        (value,) = self._unpack(_format(kind, what), what)
        return value if kind != _BOOL else value != 0

    def _skipped_array(self, what: str) -> _Array:
        kind, length = self._unpack("IQ", what)
        if length > _MAX_ARRAY_LENGTH:
            _refuse(what, f"an array of at most {_MAX_ARRAY_LENGTH} values", str(length))
        array = _Array(kind, length, self._offset)
        if kind == _ARRAY:
            _refuse(what, "an array of numbers or texts", "an array of arrays")
        if kind == _STRING:
            self._skip_texts(length, what)
        else:
            self._skip(length * struct.calcsize(_format(kind, what)), what)
        return array

    def _skip_texts(self, length: int, what: str) -> None:
        # The one loop over every token: written out, it takes half the time.
        offset, end, data, unpack = self._offset, self._end, self._data, struct.Struct("<Q").unpack_from
        for _ in range(length):
            if offset + 8 > end:
                self._refuse_end(what)
            offset += 8 + unpack(data, offset)[0]
        self._offset = offset
        self._skip(0, what)

    def _unpack(self, characters: str, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{characters}", self._take(struct.calcsize(f"<{characters}"), what))

    def _take(self, num_bytes: int, what: str) -> bytes:
        taken = self._peek(num_bytes, what)
        self._offset += num_bytes
        return taken

    def _peek(self, num_bytes: int, what: str) -> bytes:
        if num_bytes > self._end - self._offset:
            self._refuse_end(what)
        return self._data[self._offset : self._offset + num_bytes]

    def _skip(self, num_bytes: int, what: str) -> None:
        if num_bytes > self._end - self._offset:
            self._refuse_end(what)
        self._offset += num_bytes

    def _refuse_end(self, what: str) -> NoReturn:
        is_long = len(self._data) > self._end
        limit = f"a header of at most {_MAX_HEADER_BYTES} bytes" if is_long else "a whole header"
        _refuse(what, limit, "more" if is_long else "the end of the file")


def split_names(name: str) -> list[str]:
    """Returns the names of a model's files by the first one's, as llama.cpp splits them; the name alone if it is not
    one of several."""
    found = _FIRST.fullmatch(name)
    return [f"{found[1]}-{index:05}-of-{found[2]}.gguf" for index in range(1, int(found[2]) + 1)] if found else [name]


def split_files(path: Path) -> list[Path]:
    """Returns the files of a model by the first one's name, or that of what it links to."""
    names = split_names(path.name)
    if len(names) == 1 and path.is_symlink():
        return split_files(path.parent / path.readlink())
    return [path.with_name(name) for name in names]


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # A private copy of pages that are written: torch wants writable memory, and nobody writes.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise CheckpointError(f"the GGUF file {path.name!r} cannot be read or is empty") from error


_NAME = re.compile(r"[\w./-]+", re.ASCII)
_FIRST = re.compile(r"(.+)-00001-of-(\d{5})\.gguf")


def _format(kind: int, what: str) -> str:
    if kind not in _FORMATS:
        _refuse(what, "a type from 0 to 12", str(kind))
    return _FORMATS[kind]


def _refuse(what: str, expected: str, found: str) -> NoReturn:
    raise CheckpointError(
        f"GGUF {what}: expected {expected}, got {found}" if what else f"expected {expected}, got {found}"
    )
