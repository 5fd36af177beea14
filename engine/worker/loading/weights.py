"""Loads a checkpoint's files, safetensors or GGUF, into tensors that a model has allocated.

Tensors are read one at a time, in file order, directly to the model's device. So at most one tensor is in memory in
addition to the model, and on a CPU that one is the memory-mapped file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glimpse.engine.checkpoint.model_config.model import Companion
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.gguf_weights import gguf_tensors
from glimpse.engine.worker.loading.weight_files import is_gguf, weight_files

_CONVERTIBLE = {torch.float32, torch.bfloat16, torch.float16}
"""Dtypes of unquantized weights. Values of other dtypes are meaningless without their scales."""


def load_weights(
    path: Path,
    destinations: Mapping[str, Tensor],
    *,
    device: torch.device,
    renamed_prefixes: Mapping[str, str],
    ignored: Callable[[str], bool],
    split: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]],
    convert: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]],
    shard: Callable[[str, Tensor], Tensor],
    on_progress: Callable[[float], None],
    companions: Sequence[Companion] = (),
) -> None:
    """Fills every destination with the checkpoint's tensor of that name, converted to its dtype and device.

    Args:
        path: folder of the checkpoint.
        destinations: tensors to fill, by checkpoint name.
        device: device of the destinations.
        renamed_prefixes: prefixes of names in the files that differ from those of checkpoint names → the latter.
        ignored: whether a tensor, given by its checkpoint name, may be absent from `destinations`.
        split: returns the parts of a tensor that stacks the weights of several destinations; none of one that a later
            tensor completes.
        convert: converts a tensor to the tensors that a linear of the model's quantization scheme stores.
        shard: returns the shard that this rank stores, as a view, from a tensor and its name.
        on_progress: called with the fraction of the destinations' bytes that is filled.
        companions: checkpoints that hold parts of the model. A tensor that the checkpoint has itself comes from there.

    Raises:
        CheckpointError: a file cannot be read, or a tensor is missing, unexpected or has the wrong shape or dtype.
    """
    missing = set(destinations)
    unexpected: list[str] = []
    folders = [(path, ""), *((companion.path, companion.prefix) for companion in companions)]
    files = [(file, prefix) for folder, prefix in folders for file in _files(folder)]
    num_bytes, num_filled = sum(tensor.nbytes for tensor in destinations.values()), 0
    own_names: set[str] = set()
    for file_name, read, is_own in _tensors(files, device):
        source = checkpoint_name(file_name, renamed_prefixes)
        if is_own:
            own_names.add(source)
        elif source in own_names:
            continue
        if source not in destinations and ignored(source):
            continue
        for name, tensor in _converted(split(source, read()), convert):
            if name in missing:
                _fill(destinations[name], shard(name, tensor), file_name)
                missing.discard(name)
                num_filled += destinations[name].nbytes
            else:
                unexpected.append(file_name)
        on_progress(num_filled / num_bytes)
    if missing:
        raise CheckpointError(f"the checkpoint has no tensors {_listed(missing)}")
    if unexpected:
        raise CheckpointError(f"the checkpoint has unexpected tensors: {_listed(unexpected)}")
    on_progress(1.0)


def _converted(
    parts: Iterable[tuple[str, Tensor]], convert: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
) -> Iterator[tuple[str, Tensor]]:
    for name, part in parts:
        yield from convert(name, part)


def checkpoint_name(name: str, renamed_prefixes: Mapping[str, str]) -> str:
    """Returns the checkpoint name of a tensor by its name in a file; see `load_weights`."""
    for prefix, published in renamed_prefixes.items():
        if name.startswith(prefix):
            return published + name.removeprefix(prefix)
    return name


def _tensors(
    files: Iterable[tuple[Path, str]], device: torch.device
) -> Iterator[tuple[str, Callable[[], Tensor], bool]]:
    """Yields each tensor's name with its file's prefix, a function that reads it, valid until the next iteration, and
    whether the prefix is empty."""
    for file, prefix in files:
        if is_gguf(file):
            yield from ((prefix + name, read, not prefix) for name, read in gguf_tensors(file, device))
            continue
        try:
            with safe_open(file, framework="pt", device=str(device)) as tensors:
                for name in tensors.offset_keys():
                    yield prefix + name, partial(tensors.get_tensor, name), not prefix
        except SafetensorError as error:
            raise CheckpointError(f"the checkpoint's {file.name} cannot be read: {error}") from error


def _files(path: Path) -> list[Path]:
    files = weight_files(path)
    for file in files:
        if not file.exists():
            raise CheckpointError(f"the checkpoint has no {file.name}")
    return files


def _fill(destination: Tensor, stored: Tensor, name: str) -> None:
    if difference := mismatch(destination, stored, name):
        raise CheckpointError(difference)
    with torch.inference_mode():
        destination.copy_(stored)


def mismatch(destination: Tensor, stored: Tensor, name: str) -> str | None:
    """Returns why a checkpoint's tensor cannot be that of the model; None if it can."""
    if stored.shape != destination.shape:
        return f"tensor {name!r}: expected shape {[*destination.shape]} from config.json, got {[*stored.shape]}"
    if stored.dtype != destination.dtype and not {stored.dtype, destination.dtype} <= _CONVERTIBLE:
        expected, found = (str(dtype).removeprefix("torch.") for dtype in (destination.dtype, stored.dtype))
        return f"tensor {name!r}: expected {expected} from config.json, got {found}"
    return None


def _listed(names: set[str] | list[str]) -> str:
    shown = sorted(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
