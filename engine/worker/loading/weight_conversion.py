"""Converts a checkpoint's tensors, one at a time as they are read, to the layouts that linears store.

The destinations determine the conversion: a matrix whose scale has a destination is quantized, unless the checkpoint
already stores it quantized.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, assert_never

import torch
from torch import Tensor

from glimpse.engine.checkpoint.quantization import PACKED_INPUTS, Fp8Quantization, GroupQuantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.fp8 import quantize_fp8
from glimpse.engine.worker.layers.group_quantized import pack_values, quantize_groups
from glimpse.engine.worker.layers.linear import quantize_int8
from glimpse.engine.worker.layers.quantized import QuantizationScheme

Converter: TypeAlias = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""From a tensor and its checkpoint name to the tensors that the model's linears store, with their names: for a matrix
`weight` and its quantization parameters, all with the output features first."""

AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight consecutive outputs, which nibble of the 32-bit word stores it, lowest first (AutoAWQ,
awq/modules/linear/gemm.py)."""

ONES = {4: 0x11111111, 8: 0x01010101}
"""A 1 in each field of a 32-bit word, by bits per field."""


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


def _converter(scheme: QuantizationScheme | None, destinations: Mapping[str, Tensor]) -> Converter:
    match scheme:
        case None:
            return _unchanged
        case "int8":
            return _quantizing(lambda weight, _stem: quantize_int8(weight), destinations)
        case "fp8":
            return _quantizing(lambda weight, _stem: quantize_fp8(weight), destinations)
        case "int4":
            return _quantizing(lambda weight, stem: _quantize_int4(weight, stem, destinations), destinations)
        case Fp8Quantization():
            return _from_fp8
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


def _quantize_int4(weight: Tensor, stem: str, destinations: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    # On a rank that stores a shard of the inputs, groups must lie within the shard.
    packed, scale = destinations[f"{stem}.weight"], destinations[f"{stem}.scale"]
    group_size = 2 * packed.shape[1] // scale.shape[1]
    return quantize_groups(weight, bits=4, group_size=group_size, scale_dtype=scale.dtype)


def _from_fp8(name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Converts from the names of compressed-tensors."""
    stem, _, kind = name.rpartition(".")
    yield (f"{stem}.scale", stored.reshape(-1, 1)) if kind == "weight_scale" else (name, stored)


def _from_groups(
    scheme: GroupQuantization, name: str, stored: Tensor, destinations: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Converts from the names and layouts of AutoAWQ and AutoGPTQ, and from GGUF's blocks."""
    stem, _, kind = name.rpartition(".")
    match kind:
        case "blocks":
            yield from _from_blocks(scheme.bits, stem, stored)
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


def _from_blocks(bits: int, stem: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Converts rows of GGUF's Q4_0 or Q8_0, which has signed values: in each block a float16 scale, then the values of
    a group, in the order of `group_quantized`."""
    blocks = stored.unflatten(1, (-1, 2 + PACKED_INPUTS * bits // 8))
    values, middle = blocks[:, :, 2:].flatten(1), 1 << bits - 1
    scale = blocks[:, :, :2].contiguous().view(torch.float16).squeeze(-1)
    yield f"{stem}.weight", values if bits == 4 else values ^ middle
    yield f"{stem}.scale", scale
    yield f"{stem}.zero", torch.full_like(scale, middle, dtype=torch.uint8)


def _values(scheme: GroupQuantization, name: str, words: Tensor) -> Tensor:
    """uint8 [out, in] from AWQ's int32 [in, out / 8] or GPTQ's int32 [in · bits / 32, out]."""
    _check_words(name, words)
    values = _awq_fields(words).T if scheme.method == "awq" else _fields(words.T, scheme.bits)
    if values.shape[1] % PACKED_INPUTS:
        raise CheckpointError(f"tensor {name!r}: expected a multiple of {PACKED_INPUTS} inputs, got {values.shape[1]}")
    return values


def _zeros(scheme: GroupQuantization, name: str, words: Tensor) -> Tensor:
    """uint8 [out, groups] from int32 [groups, out · bits / 32]."""
    _check_words(name, words)
    if scheme.method == "awq":
        return _awq_fields(words).T
    # Added to whole words, as GPTQModel subtracts it: a borrow from the next field is undone by the carry.
    return _fields(words + ONES[scheme.bits] if scheme.zero_points_minus_one else words, scheme.bits).T


def _fields(words: Tensor, bits: int) -> Tensor:
    """int32 [rows, words] → uint8 [rows, fields], a word's lowest bits first."""
    octets = words.contiguous().view(torch.uint8)  # little-endian
    if bits == 8:
        return octets
    return torch.stack([octets & 15, octets >> 4], dim=-1).flatten(1)


def _awq_fields(words: Tensor) -> Tensor:
    """int32 [rows, words] → uint8 [rows, 8 · words] in AutoAWQ's order."""
    return _fields(words, 4).unflatten(1, (-1, 8))[:, :, AWQ_NIBBLES].flatten(1)


def _check_words(name: str, words: Tensor) -> None:
    if words.dtype is not torch.int32 or words.dim() != 2:
        raise CheckpointError(f"tensor {name!r}: expected an int32 matrix, got {words.dtype} of shape {[*words.shape]}")


def _check_consecutive(scheme: GroupQuantization, name: str, group_index: Tensor) -> None:
    inputs = torch.arange(len(group_index), device=group_index.device)
    if not torch.equal(group_index.long(), inputs // (scheme.group_size or len(inputs))):
        raise CheckpointError(f"tensor {name!r}: expected groups of consecutive inputs, because desc_act is false")
