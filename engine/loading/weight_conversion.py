"""Translates a checkpoint's tensors, one by one as they are read, into the forms that linears keep.

What the model wants says what is to be made: a matrix whose scale is wanted too is quantized, unless it comes so.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, assert_never

import torch
from torch import Tensor

from glimpse.engine.errors import CheckpointError
from glimpse.engine.layers.fp8 import quantize_fp8
from glimpse.engine.layers.group_quantized import pack_steps, quantize_groups
from glimpse.engine.layers.linear import quantize_int8
from glimpse.engine.layers.quantized import QuantizationScheme
from glimpse.engine.quantization import PACKED_INPUTS, Fp8Quantization, GroupQuantization

Translate: TypeAlias = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""From a tensor's published name and the tensor to what the model's linears call it, in their scheme: of a matrix they
keep `weight` and what belongs to it, all with the output features first."""

AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight neighbours, which four bits of the word they are in, counted from the lowest (AutoAWQ,
awq/modules/linear/gemm.py)."""

ONES = {4: 0x11111111, 8: 0x01010101}
"""A one in each field of a word, by the bits of a field."""


def translation(scheme: QuantizationScheme | None, wanted: Mapping[str, Tensor]) -> Translate:
    """How the tensors of a checkpoint come into a model.

    Args:
        scheme: of the model's quantized linears; None: there are none.
        wanted: what the model is to be given, or a part of it, by name.
    """
    match scheme:
        case None:
            return _as_it_is
        case "int8":
            return _quantizing(lambda weight, _stem: quantize_int8(weight), wanted)
        case "fp8":
            return _quantizing(lambda weight, _stem: quantize_fp8(weight), wanted)
        case "int4":
            return _quantizing(lambda weight, stem: _quantize_int4(weight, stem, wanted), wanted)
        case Fp8Quantization():
            return _from_fp8
        case GroupQuantization():
            return lambda name, stored: _from_groups(scheme, name, stored, wanted)
        case _:
            assert_never(scheme)


def _as_it_is(name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield name, stored


def _quantizing(quantize: Callable[[Tensor, str], Mapping[str, Tensor]], wanted: Mapping[str, Tensor]) -> Translate:
    def translate(name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and f"{stem}.scale" in wanted:
            yield from ((f"{stem}.{part}", tensor) for part, tensor in quantize(stored, stem).items())
        else:
            yield name, stored

    return translate


def _quantize_int4(weight: Tensor, stem: str, wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    # A model that holds a part of the inputs has groups that lie within its part.
    packed, scale = wanted[f"{stem}.weight"], wanted[f"{stem}.scale"]
    group_size = 2 * packed.shape[1] // scale.shape[1]
    return quantize_groups(weight, bits=4, group_size=group_size, scale_dtype=scale.dtype)


def _from_fp8(name: str, stored: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The names of compressed-tensors."""
    stem, _, kind = name.rpartition(".")
    yield (f"{stem}.scale", stored.reshape(-1, 1)) if kind == "weight_scale" else (name, stored)


def _from_groups(
    scheme: GroupQuantization, name: str, stored: Tensor, wanted: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The names of AutoAWQ and AutoGPTQ."""
    stem, _, kind = name.rpartition(".")
    match kind:
        case "qweight":
            yield f"{stem}.weight", pack_steps(_steps(scheme, name, stored), scheme.bits)
        case "qzeros":
            yield f"{stem}.zero", _zeros(scheme, name, stored)
        case "scales":
            yield f"{stem}.scale", stored.T
        case "g_idx":
            if scheme.reordered:
                yield f"{stem}.group_index", stored.to(torch.int32)
            else:
                _check_neighbours(scheme, name, stored)
        # AutoGPTQ writes biases of zeros where the model has none.
        case "bias" if name not in wanted and scheme.method == "gptq" and not stored.any():
            pass
        case _:
            yield name, stored


def _steps(scheme: GroupQuantization, name: str, words: Tensor) -> Tensor:
    """uint8 [out, in] from AWQ's int32 [in, out / 8] or GPTQ's int32 [in · bits / 32, out]."""
    _check_words(name, words)
    steps = _awq_fields(words).T if scheme.method == "awq" else _fields(words.T, scheme.bits)
    if steps.shape[1] % PACKED_INPUTS:
        raise CheckpointError(f"{name} has {steps.shape[1]} inputs, not a multiple of {PACKED_INPUTS}")
    return steps


def _zeros(scheme: GroupQuantization, name: str, words: Tensor) -> Tensor:
    """uint8 [out, groups] from int32 [groups, out · bits / 32]."""
    _check_words(name, words)
    if scheme.method == "awq":
        return _awq_fields(words).T
    # Whole words, as GPTQModel subtracts and adds them: what a field borrowed from the next comes back.
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
        raise CheckpointError(f"{name} is stored as {words.dtype} of shape {[*words.shape]}, not as a matrix of int32")


def _check_neighbours(scheme: GroupQuantization, name: str, group_index: Tensor) -> None:
    inputs = torch.arange(len(group_index), device=group_index.device)
    if not torch.equal(group_index.long(), inputs // (scheme.group_size or len(inputs))):
        raise CheckpointError(f"{name} makes groups of inputs that are no neighbours; config.json says desc_act false")
