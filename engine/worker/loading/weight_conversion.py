"""Converts a checkpoint's tensors, one at a time as they are read, to the layouts that linears store.

The destinations determine the conversion: a matrix whose scale has a destination is quantized, unless the checkpoint
already stores it quantized.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, assert_never

import torch
from torch import Tensor

from glimpse.engine.checkpoint.gguf.names import TILED_BLOCKS, is_packed
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.quantization import (
    GGUF_FORMATS,
    CompressedQuantization,
    GgufQuantization,
    GroupFormat,
    GroupQuantization,
)
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.fp8 import quantize_fp8
from glimpse.engine.worker.layers.group_quantized import pack_values, quantize_groups
from glimpse.engine.worker.layers.linear import quantize_int8, stacked_names
from glimpse.engine.worker.layers.quantized import QuantizationScheme
from glimpse.engine.worker.loading.compressed_weights import (
    CompressedConverter,
    check_inputs,
    check_words,
    unpack_words,
)
from glimpse.engine.worker.loading.gguf_weights import dequantize, unpack, untiled
from glimpse.engine.worker.loading.weight_files import FLOATS, StoredTensor
from glimpse.engine.worker.loading.weights import checkpoint_name
from glimpse.engine.worker.models.model import Model

_log = logging.getLogger(__name__)

Converter: TypeAlias = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""From a tensor and its checkpoint name to the tensors that the model's linears store, with their names: for a matrix
`weight` and its quantization parameters, all with the output features first."""

AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight consecutive outputs, which nibble of the 32-bit word stores it, lowest first (AutoAWQ,
awq/modules/linear/gemm.py)."""

ONES = {4: 0x11111111, 8: 0x01010101}
"""A 1 in each field of a 32-bit word, by bits per field."""


_IN_LAYER = re.compile(r"\.layers\.|^mtp\.")
_TYPES = {torch.float16: "F16", torch.bfloat16: "BF16"}
"""Types of scales in safetensors' words."""


def make_converter(
    scheme: QuantizationScheme | None, destinations: Mapping[str, Tensor], arrange: Converter
) -> Converter:
    """Returns the conversion from a checkpoint's tensors to a model's.

    Args:
        scheme: quantization scheme of the model's linears; None if they are not quantized.
        destinations: the model's tensors, or this rank's shards of them, by name.
        arrange: what is done then; see `Model.arrange`.
    """
    convert = _converter(scheme, destinations)
    return lambda name, stored: (part for converted in convert(name, stored) for part in arrange(*converted))


def float_matrices(stored: Mapping[str, StoredTensor], model: Model, text: TextConfig) -> set[str]:
    """Returns the matrices in and before layers that a checkpoint has as floats, by the model's names without
    `.weight`."""
    floats = (
        (checkpoint_name(name, model.renamed_prefixes), torch.empty(header.shape, device="meta"))
        for name, header in stored.items()
        if header.dtype in FLOATS and _IN_LAYER.search(name) and name.endswith((".weight", "_proj"))
    )
    parts = (part for named in floats for part in model.split_weight(*named, text=text))
    return {name.removesuffix(".weight") for part in parts for name, _ in model.arrange(*part, text=text)}


def exact_scale_dtype(stored: Mapping[str, StoredTensor], dtype: torch.dtype) -> torch.dtype:
    """Returns a type that holds the scales of all groups exactly: `dtype`, or float32 where one has another type."""
    types = {header.dtype for name, header in stored.items() if name.endswith((".scales", ".weight_scale"))}
    return dtype if types <= {_TYPES.get(dtype)} else torch.float32


def _converter(scheme: QuantizationScheme | None, destinations: Mapping[str, Tensor]) -> Converter:
    match scheme:
        case None:
            return _unchanged
        case "int8":
            return _quantizing(lambda weight, _stem: quantize_int8(weight), destinations)
        case "fp8":
            return _quantizing(lambda weight, _stem: quantize_fp8(weight), destinations)
        case "int4" | "w8a8":
            bits = 4 if scheme == "int4" else 8
            return _quantizing(lambda weight, stem: _quantize_groups(weight, stem, destinations, bits), destinations)
        case CompressedQuantization():
            return CompressedConverter(scheme, destinations)
        case GgufQuantization():
            formats = _formats(scheme, destinations)
            return lambda name, stored: _from_gguf(scheme, name, stored, formats)
        case GroupQuantization():
            return lambda name, stored: _from_groups(scheme, name, stored, destinations)
        case _:
            assert_never(scheme)


def _unchanged(name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield name, stored


def _quantizing(
    quantize: Callable[[Tensor, str], Mapping[str, Tensor]], destinations: Mapping[str, Tensor]
) -> Converter:
    def convert(name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and f"{stem}.scale" in destinations:
            yield from ((f"{stem}.{part}", tensor) for part, tensor in quantize(stored, stem).items())
        else:
            yield name, stored

    return convert


def _quantize_groups(weight: Tensor, stem: str, destinations: Mapping[str, Tensor], bits: int) -> Mapping[str, Tensor]:
    # On a rank that stores a shard of the inputs, groups must lie within the shard.
    packed, scale = destinations[f"{stem}.weight"], destinations[f"{stem}.scale"]
    group_size = packed.shape[1] * 8 // bits // scale.shape[1]
    return quantize_groups(weight, bits=bits, group_size=group_size, scale_dtype=scale.dtype)


def _from_groups(
    scheme: GroupQuantization, name: str, stored: Tensor, destinations: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Converts from the names and layouts of AutoAWQ and AutoGPTQ."""
    stem, _, kind = name.rpartition(".")
    match kind:
        case "qweight":
            yield f"{stem}.weight", pack_values(_values(scheme, name, stored), scheme.bits)
        case "qzeros":
            yield f"{stem}.zero", _zeros(scheme, name, stored)
        case "scales":
            yield f"{stem}.scale", stored.T
        case "g_idx":
            if scheme.desc_act:
                yield f"{stem}.group_index", stored.to(torch.int32)
            else:
                _check_consecutive(scheme, name, stored)
        # AutoGPTQ writes biases of zeros for linears without bias.
        case "bias" if name not in destinations and scheme.method == "gptq" and not stored.any():
            pass
        case _:
            yield name, stored


def _formats(scheme: GgufQuantization, destinations: Mapping[str, Tensor]) -> dict[str, GroupFormat]:
    """Returns the format of each matrix that a linear stores in groups, and logs which are not stored as they are."""
    formats: dict[str, GroupFormat] = {}
    changes: Counter[str] = Counter()
    for names in stacked_names(destinations.items()).values():
        wanted = scheme.format_of(names) if f"{names[0]}.scale" in destinations else None
        if wanted is not None:
            formats |= dict.fromkeys(names, wanted)
        kinds = filter(None, map(scheme.type_of, names))
        changes.update(f"{kind} {wanted or 'dequantized'}" for kind in kinds if wanted != GGUF_FORMATS[kind])
    if changes:
        listed = ", ".join(f"{count} of {change}" for change, count in changes.most_common())
        _log.info("GGUF matrices that are not multiplied as they are stored: %s", listed)
    return formats


def _from_gguf(
    scheme: GgufQuantization, name: str, stored: Tensor, formats: Mapping[str, GroupFormat]
) -> Iterator[tuple[str, Tensor]]:
    """Converts blocks, uint8 [out, bytes], to the format of the linear that stacks the matrix with others."""
    stem, _, what = name.rpartition(".")
    kind = scheme.type_of(stem)
    tiled_heads = scheme.tiled_heads if what == TILED_BLOCKS else None
    if not is_packed(name) or kind is None:
        yield name, stored
    elif (wanted := formats.get(stem)) is None:
        weight = dequantize(kind, stored)
        yield f"{stem}.weight", weight if tiled_heads is None else untiled(weight, tiled_heads)
    else:
        groups = unpack(kind, stored, tiled_heads)
        parts = groups.values.shape[1] // groups.scale.shape[1] // wanted.group_size
        zero = groups.minima if wanted.has_minimum else groups.zero_points
        yield f"{stem}.weight", pack_values(groups.values, wanted.bits)
        yield f"{stem}.scale", groups.scale.repeat_interleave(parts, 1)
        yield f"{stem}.zero", zero.repeat_interleave(parts, 1)


def _values(scheme: GroupQuantization, name: str, words: Tensor) -> Tensor:
    """uint8 [out, in] from AWQ's int32 [in, out / 8] or GPTQ's int32 [in · bits / 32, out]."""
    check_words(name, words)
    values = _awq_fields(words).T if scheme.method == "awq" else unpack_words(words.T, scheme.bits)
    check_inputs(name, values)
    return values


def _zeros(scheme: GroupQuantization, name: str, words: Tensor) -> Tensor:
    """uint8 [out, groups] from int32 [groups, out · bits / 32]."""
    check_words(name, words)
    if scheme.method == "awq":
        return _awq_fields(words).T
    # Added to whole words, as GPTQModel subtracts it: a borrow from the next field is undone by the carry.
    return unpack_words(words + ONES[scheme.bits] if scheme.zero_points_minus_one else words, scheme.bits).T


def _awq_fields(words: Tensor) -> Tensor:
    """int32 [rows, words] → uint8 [rows, 8 · words] in AutoAWQ's order."""
    return unpack_words(words, 4).unflatten(1, (-1, 8))[:, :, AWQ_NIBBLES].flatten(1)


def _check_consecutive(scheme: GroupQuantization, name: str, group_index: Tensor) -> None:
    inputs = torch.arange(len(group_index), device=group_index.device)
    if not torch.equal(group_index.long(), inputs // (scheme.group_size or len(inputs))):
        raise CheckpointError(f"tensor {name!r}: expected groups of consecutive inputs, because desc_act is false")
