"""Reads a checkpoint's safetensors files into memory that a model has prepared. Knows files and names, no model."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


def load_weights(
    path: Path,
    destinations: Mapping[str, Tensor],
    *,
    published_name: Callable[[str], str],
    ignored: Callable[[str], bool],
    on_progress: Callable[[float], None],
) -> None:
    """Fills every destination with the checkpoint's tensor of that name, converted to its dtype and device.

    Args:
        path: folder of the checkpoint.
        destinations: published name → the tensor to fill.
        published_name: of a tensor, from its name in the files.
        ignored: whether a tensor (by published name) that has no destination is harmless.
        on_progress: called with the share of the tensors that are loaded.

    Raises:
        CheckpointError: a file cannot be read, or a tensor is missing, unknown or of another shape.
    """
    missing = set(destinations)
    unknown: list[str] = []
    for stored_name, stored in _stored_tensors(path):
        name = published_name(stored_name)
        if name in missing:
            _fill(destinations[name], stored, stored_name)
            missing.discard(name)
            on_progress(1 - len(missing) / len(destinations))
        elif not ignored(name):
            unknown.append(stored_name)
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_listed(missing)}")
    if unknown:
        raise CheckpointError(f"the checkpoint has tensors of which the model knows nothing: {_listed(unknown)}")


def _stored_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    for file in _files(path):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping: it has no __iter__
                    yield name, tensors.get_tensor(name)
        except FileNotFoundError as error:
            raise CheckpointError(f"the checkpoint has no {file.name}") from error
        except SafetensorError as error:
            raise CheckpointError(f"the checkpoint's {file.name} cannot be read: {error}") from error


def _files(path: Path) -> list[Path]:
    index = path / INDEX_NAME
    if not index.exists():
        return [path / SINGLE_NAME]
    try:
        names: set[str] = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint's {INDEX_NAME} has no readable weight_map") from error
    return [path / name for name in sorted(names)]


def _fill(destination: Tensor, stored: Tensor, name: str) -> None:
    if stored.shape != destination.shape:
        raise CheckpointError(f"{name} has shape {[*stored.shape]}; config.json implies {[*destination.shape]}")
    with torch.inference_mode():
        destination.copy_(stored)


def _listed(names: set[str] | list[str]) -> str:
    shown = sorted(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
