"""A checkpoint's safetensors files: which there are, and what their headers say. Independent of torch."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from glimpse.engine.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER_BYTES = 100 << 20
"""As in the safetensors library."""


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
    return {name: tensor for file in files for name, tensor in _read_header(file).items()}


def _read_header(file: Path) -> Mapping[str, StoredTensor]:
    """Reads a header: its length in 8 bytes, then JSON (https://huggingface.co/docs/safetensors)."""
    try:
        with file.open("rb") as stream:
            num_bytes = int.from_bytes(stream.read(8), "little")
            entries: dict[str, Mapping[str, object]] = json.loads(stream.read(min(num_bytes, _MAX_HEADER_BYTES)))
        entries.pop("__metadata__", None)
        return msgspec.convert(entries, dict[str, StoredTensor])
    except (OSError, ValueError, msgspec.ValidationError, AttributeError, TypeError) as error:
        raise CheckpointError(f"the checkpoint's {file.name} has no readable header") from error
