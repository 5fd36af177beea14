"""Reads a checkpoint's safetensors files into memory that a model has prepared. Knows files and names, no model.

Tensors come one by one, in the order in which they lie in the files, straight to the model's device: beside the model's
own memory there is never more than one of them, and in a CPU's case it is the file itself, mapped into memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glimpse.engine.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_CONVERTIBLE = {torch.float32, torch.bfloat16, torch.float16}
"""Types of plain weights. Numbers of other types mean something only together with their scales."""


def load_weights(
    path: Path,
    destinations: Mapping[str, Tensor],
    *,
    device: torch.device,
    checkpoint_name: Callable[[str], str],
    ignored: Callable[[str], bool],
    translate: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]],
    part: Callable[[str, Tensor], Tensor],
    on_progress: Callable[[float], None],
) -> None:
    """Fills every destination with the checkpoint's tensor of that name, converted to its dtype and device.

    Args:
        path: folder of the checkpoint.
        destinations: name → the tensor to fill.
        device: of the destinations.
        checkpoint_name: of a tensor, from its name in the files.
        ignored: whether a tensor (by published name) that has no destination is harmless.
        translate: what a tensor (by published name) becomes: the same, or what quantized linears make of it.
        part: what a destination holds of a tensor, from its name: all of it, or this rank's part as a view.
        on_progress: called with the share of the files' bytes that are loaded.

    Raises:
        CheckpointError: a file cannot be read, or a tensor is missing, unknown or of another shape.
    """
    missing = set(destinations)
    unknown: list[str] = []
    files = _files(path)
    num_bytes, num_loaded = sum(file.stat().st_size for file in files), 0
    for stored_name, read in _stored_tensors(files, device):
        published = checkpoint_name(stored_name)
        if published not in destinations and ignored(published):
            continue
        stored = read()
        for name, tensor in translate(published, stored):
            if name in missing:
                _fill(destinations[name], part(name, tensor), stored_name)
                missing.discard(name)
            else:
                unknown.append(stored_name)
        num_loaded += stored.nbytes
        on_progress(num_loaded / num_bytes)
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_listed(missing)}")
    if unknown:
        raise CheckpointError(f"the checkpoint has tensors of which the model knows nothing: {_listed(unknown)}")
    on_progress(1.0)


def _stored_tensors(files: Iterable[Path], device: torch.device) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Each tensor's name and what reads it, as long as the next has not been asked for."""
    for file in files:
        try:
            with safe_open(file, framework="pt", device=str(device)) as tensors:
                for name in tensors.offset_keys():
                    yield name, partial(tensors.get_tensor, name)
        except SafetensorError as error:
            raise CheckpointError(f"the checkpoint's {file.name} cannot be read: {error}") from error


def _files(path: Path) -> list[Path]:
    names = _file_names(path)
    for name in names:
        if not (path / name).exists():
            raise CheckpointError(f"the checkpoint has no {name}")
    return [path / name for name in names]


def _file_names(path: Path) -> list[str]:
    index = path / INDEX_NAME
    if not index.exists():
        return [SINGLE_NAME]
    try:
        names: set[str] = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint's {INDEX_NAME} has no readable weight_map") from error
    return sorted(names)


def _fill(destination: Tensor, stored: Tensor, name: str) -> None:
    if stored.shape != destination.shape:
        raise CheckpointError(f"{name} has shape {[*stored.shape]}; config.json implies {[*destination.shape]}")
    if stored.dtype != destination.dtype and not {stored.dtype, destination.dtype} <= _CONVERTIBLE:
        kind, expected = (str(dtype).removeprefix("torch.") for dtype in (stored.dtype, destination.dtype))
        raise CheckpointError(f"{name} is stored as {kind}; config.json implies {expected}")
    with torch.inference_mode():
        destination.copy_(stored)


def _listed(names: set[str] | list[str]) -> str:
    shown = sorted(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
