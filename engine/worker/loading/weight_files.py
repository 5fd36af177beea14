"""A checkpoint's files with weights: which there are, and what their headers say. Independent of torch."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import msgspec

from glimpse.engine.checkpoint.gguf.folder import ENCODER, WEIGHTS
from glimpse.engine.checkpoint.gguf.header import Gguf, split_files
from glimpse.engine.checkpoint.gguf.names import Parts, checkpoint_tensors, is_packed
from glimpse.engine.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER_BYTES = 100 << 20
"""Limit of the safetensors library."""
FLOATS = ("F16", "BF16", "F32")
"""Types of weights that are not quantized; those of GGUF files stay what they are."""
_DIGESTED_BYTES = 64 << 10
"""At the beginning and at the end of a file."""


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor as the header of its file describes it."""

    dtype: str
    """In safetensors' words, such as "BF16"."""
    shape: tuple[int, ...]


def weight_files(path: Path) -> list[Path]:
    """Returns the files with the weights of the checkpoint in a folder, whether they exist or not.

    Raises:
        CheckpointError: the index cannot be read.
    """
    if gguf_files := [file for name in (WEIGHTS, ENCODER) if (file := path / name).is_symlink()]:
        return gguf_files
    index = path / INDEX_NAME
    if not index.exists():
        return [path / SINGLE_NAME]
    try:
        names: set[str] = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint's {INDEX_NAME} has no readable weight_map") from error
    return [path / name for name in sorted(names)]


def read_headers(path: Path) -> dict[str, StoredTensor] | None:
    """Returns the tensors of the checkpoint in a folder; None if one of its files is not there.

    Raises:
        CheckpointError: the index or a file cannot be read.
    """
    files = weight_files(path)
    if not all(file.exists() for file in files):
        return None
    return {name: tensor for file in files for name, tensor in read_header(file).items()}


def checkpoint_digest(folders: Iterable[str]) -> str:
    """Returns a digest that tells checkpoints apart: of their configurations, and of sizes and ends of their weights.

    It reads 128 KiB of each file with weights, so it takes no time. Files that are missing count as missing.

    Args:
        folders: of the checkpoint and its companions.

    Raises:
        CheckpointError: an index cannot be read.
    """
    digest = hashlib.sha256()
    for folder in map(Path, folders):
        files = (part for file in weight_files(folder) for part in (split_files(file) if is_gguf(file) else [file]))
        for file in (folder / "config.json", *files):
            size = file.stat().st_size if file.exists() else -1
            digest.update(f"{file.name} {size}\n".encode())
            if size > 0:
                with file.open("rb") as stream:
                    digest.update(stream.read(_DIGESTED_BYTES))
                    stream.seek(max(size - _DIGESTED_BYTES, 0))
                    digest.update(stream.read(_DIGESTED_BYTES))
    return digest.hexdigest()


def read_header(file: Path) -> Mapping[str, StoredTensor]:
    """Returns the tensors of one file. Raises CheckpointError if it cannot be read."""
    return _read_gguf_header(file) if is_gguf(file) else _read_safetensors_header(file)


def is_gguf(file: Path) -> bool:
    """Returns whether a file of `weight_files` is a GGUF file."""
    return file.suffix == ".gguf"


def _read_gguf_header(file: Path) -> Mapping[str, StoredTensor]:
    """Reads tensors as `gguf_weights` does."""
    gguf = Gguf(file)
    return {name: _as_read(gguf, parts, name) for name, parts in checkpoint_tensors(gguf)}


def _as_read(gguf: Gguf, parts: Parts, name: str) -> StoredTensor:
    if is_packed(name):
        tensor = gguf.tensors[parts.names[0]]
        return StoredTensor("U8", (*parts.shape(gguf)[:-1], tensor.num_bytes // prod(tensor.shape[:-1])))
    kinds = {gguf.tensors[part].type.name for part in parts.names}
    kind = kinds.pop()
    return StoredTensor(kind if not kinds and kind in FLOATS else "F32", parts.shape(gguf))


def _read_safetensors_header(file: Path) -> Mapping[str, StoredTensor]:
    """Reads a header: its length in 8 bytes, then JSON (https://huggingface.co/docs/safetensors)."""
    try:
        with file.open("rb") as stream:
            num_bytes = int.from_bytes(stream.read(8), "little")
            entries: dict[str, Mapping[str, object]] = json.loads(stream.read(min(num_bytes, _MAX_HEADER_BYTES)))
        entries.pop("__metadata__", None)
        return msgspec.convert(entries, dict[str, StoredTensor])
    except (OSError, ValueError, msgspec.ValidationError, AttributeError, TypeError) as error:
        raise CheckpointError(f"the checkpoint's {file.name} has no readable header") from error
