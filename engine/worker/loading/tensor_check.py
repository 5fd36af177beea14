"""Compares a checkpoint's tensors with those that its model loads, from headers alone."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.quantization import CheckpointQuantization, GroupQuantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.check_messages import TensorCheck
from glimpse.engine.worker.loading.compressed_weights import restoring
from glimpse.engine.worker.loading.weight_conversion import Converter, make_converter
from glimpse.engine.worker.loading.weight_files import StoredTensor
from glimpse.engine.worker.loading.weights import checkpoint_name, mismatch

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def check_tensors(
    stored: Mapping[str, StoredTensor],
    path: Path,
    config: ModelConfig,
    *,
    companions: Mapping[str, StoredTensor] | None = None,
) -> TensorCheck:
    """Returns what loading would say about a checkpoint's tensors; values, which headers do not have, aside.

    Args:
        stored: the checkpoint's tensors, by their names in its files.
        path: folder of its configuration.
        config: configuration of the model.
        companions: the tensors of its companions, their names with the companion's prefix.

    Raises:
        CheckpointError: the model cannot be built.
    """
    dtype = getattr(torch, config.dtype)
    model = empty_model(path, config, dtype, config.quantization, scale_dtype=dtype, num_ranks=1, stored=stored)
    destinations = dict(model.named_weights())
    split = restoring(config.fp8_blocks, partial(model.split_weight, text=config.text))
    convert = make_converter(config.quantization, destinations, partial(model.arrange, text=config.text))
    missing, unexpected, unfit = set(destinations), list[str](), list[str]()
    for file_name, source, header in _sources(stored, companions or {}, model.renamed_prefixes):
        if source not in destinations and model.is_unused(source):
            continue
        try:
            parts = split(source, _empty(file_name, header))
            for name, tensor in _loaded(parts, convert, config, destinations):
                if name not in missing:
                    unexpected.append(file_name)
                elif difference := mismatch(destinations[name], tensor, file_name):
                    unfit.append(difference)
                missing.discard(name)
        except CheckpointError as error:
            unfit.append(str(error))
    return TensorCheck(expected=len(destinations), missing=sorted(missing), unexpected=unexpected, unfit=unfit)


def _sources(
    stored: Mapping[str, StoredTensor], companions: Mapping[str, StoredTensor], renamed_prefixes: Mapping[str, str]
) -> Iterator[tuple[str, str, StoredTensor]]:
    """Yields the name in its file, the checkpoint name and the header of each tensor that loading reads."""
    own = {name: checkpoint_name(name, renamed_prefixes) for name in stored}
    own_names = set(own.values())
    for name, source in own.items():
        yield name, source, stored[name]
    for name, header in companions.items():
        if (source := checkpoint_name(name, renamed_prefixes)) not in own_names:
            yield name, source, header


def _empty(name: str, header: StoredTensor) -> Tensor:
    if header.dtype not in _DTYPES:
        raise CheckpointError(f"tensor {name!r}: the type {header.dtype} is not supported")
    return torch.empty(header.shape, dtype=_DTYPES[header.dtype], device="meta")


def _loaded(
    parts: Iterable[tuple[str, Tensor]], convert: Converter, config: ModelConfig, destinations: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    for name, part in parts:
        if not _depends_on_values(name, config.quantization, destinations):
            yield from convert(name, part)


def _depends_on_values(name: str, scheme: CheckpointQuantization | None, destinations: Mapping[str, Tensor]) -> bool:
    """Whether loading looks at a tensor's values before it ignores the tensor."""
    if not isinstance(scheme, GroupQuantization):
        return False
    return (name.endswith(".g_idx") and not scheme.desc_act) or (name.endswith(".bias") and name not in destinations)
