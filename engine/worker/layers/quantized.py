"""Replaces the linears of a model by quantized ones before its weights are loaded."""

from collections.abc import Iterable, Iterator, Set
from typing import Literal, Protocol, TypeAlias, assert_never, cast

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.quantization import (
    PACKED_INPUTS,
    CheckpointQuantization,
    CompressedQuantization,
    GgufQuantization,
    GroupFormat,
    GroupQuantization,
    MatrixScheme,
)
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import ChosenBackend, Quantization
from glimpse.engine.worker.layers.fp8 import FP8_ALIGNMENT, Fp8Linear
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear, UnquantizedLinear, replace_linears, stacked_names

GROUP_SIZES = (128, 64, 32)
"""Group sizes for int4 and w8a8 quantization at load time: the first that divides the number of inputs is used."""

QuantizationScheme: TypeAlias = Literal["int8", "w8a8", "int4", "fp8"] | CheckpointQuantization
"""How linears are quantized: at load time, or in the checkpoint."""

KeptBlocks: TypeAlias = Literal["none", "decoder", "all"]
"""Where matrices of a GGUF file stay integers."""

QuantizedLinear: TypeAlias = Int8Linear | GroupQuantizedLinear | Fp8Linear


def resolve_scheme(quantization: Quantization, stored: CheckpointQuantization | None) -> QuantizationScheme | None:
    """Returns the quantization scheme of the decoder's weights; None if they are not quantized.

    auto keeps a quantized checkpoint's scheme and is otherwise None here: `engine.loading.quantization_choice` chooses
    once the dtype is known.

    Raises:
        CheckpointError: the request contradicts the checkpoint.
    """
    if stored is None:
        return None if quantization in ("none", "auto") else quantization
    if quantization != "none" and isinstance(stored, GgufQuantization) and stored.is_of_encoder:
        raise CheckpointError(
            f"--quantization {quantization}: expected none with an encoder stored as {stored}, or an mmproj in F16 or"
            " BF16"
        )
    if quantization not in ("none", "auto", stored.kind):
        raise CheckpointError(f"--quantization {quantization}: the checkpoint is already quantized as {stored}")
    return stored


def quantize_linears(
    root: nn.Module,
    scheme: QuantizationScheme,
    *,
    scale_dtype: torch.dtype,
    named: Iterable[tuple[str, Tensor]] = (),
    floats: Set[str] = frozenset(),
) -> None:
    """Replaces every `Linear` that may be quantized by one of this scheme, uninitialized until it is loaded.

    Args:
        scale_dtype: type of scales. Those of a GGUF file have its own unless this is float32.
        named: the weights by their checkpoint names. Types depend on names in quantized checkpoints.
        floats: matrices of a quantized checkpoint that are not quantized, by their names without `.weight`.

    Raises:
        CheckpointError: the scheme does not support matrices of these sizes.
    """
    stacks = {} if isinstance(scheme, str) else stacked_names(named)

    def quantized(linear: Linear, _parent: nn.Module) -> nn.Module:
        names = stacks.get(linear.weight.untyped_storage(), ())
        if isinstance(linear, UnquantizedLinear) or not floats.isdisjoint(names):
            return linear
        if isinstance(scheme, GgufQuantization):
            return _in_format(linear, scheme.format_of(names), scale_dtype)
        own = scheme.scheme_of(names) if isinstance(scheme, CompressedQuantization) else scheme
        return linear if own is None else _empty(linear, own, scale_dtype)

    replace_linears(root, (Linear,), quantized)


def process_weights_after_loading(root: nn.Module) -> None:
    """Finishes quantized linears once their weights are loaded.

    Raises:
        CheckpointError: the checkpoint's groups of inputs are not supported.
    """
    for module in root.modules():
        if isinstance(module, GroupQuantizedLinear):
            module.sort_inputs()


def named_tensors(root: nn.Module, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields all weights of a module of this name, with theirs; those of linears as their `named_weights` does."""
    for path, module in root.named_modules(prefix=name):
        if isinstance(module, Linear | Int8Linear | GroupQuantizedLinear | Fp8Linear):
            yield from module.named_weights(path)
        else:
            own = module.named_parameters(recurse=False)
            yield from ((f"{path}.{kind}".lstrip("."), parameter.data) for kind, parameter in own)


class _Weighted(Protocol):
    def named_weights(self) -> Iterable[tuple[str, Tensor]]: ...


def prefixed(prefix: str, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields weights with a prefix before their names."""
    return ((f"{prefix}{name}", tensor) for name, tensor in named)


def weights_of_layers(prefix: str, layers: nn.ModuleList) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights of layers, as their `named_weights` does. Before names are a prefix and the layer's number."""
    for index, layer in enumerate(layers):
        yield from prefixed(f"{prefix}{index}.", cast("_Weighted", layer).named_weights())


def is_fp8(scheme: QuantizationScheme | None) -> bool:
    """Returns whether products are computed in FP8."""
    return scheme == "fp8" or (isinstance(scheme, CompressedQuantization) and "fp8" in scheme.kinds)


def quantizes_head(scheme: QuantizationScheme | None, backend: ChosenBackend) -> bool:
    """Returns whether the output head is quantized to int8, once it is loaded.

    It is where the decoder's layers are quantized on request and the backend computes with int8 weights; other backends
    would convert the head in each step. Quantized checkpoints keep the head that they were calibrated with.
    """
    return backend == "native" and scheme in ("int8", "w8a8", "int4")


def kept_blocks(
    scheme: QuantizationScheme | None, backend: ChosenBackend, *, multiplies_tiles: bool = False
) -> KeptBlocks:
    """Returns which matrices of a GGUF file stay integers: torch would dequantize all of them in each step.

    Args:
        multiplies_tiles: the processor multiplies tiles of bfloat16 (AMX). Products of the many rows of an encoder then
            take 1.3 to 4 times as long in groups; without, they mostly take less time in groups.
    """
    if backend == "torch" or not isinstance(scheme, GgufQuantization):
        return "none"
    return "decoder" if multiplies_tiles else "all"


def _in_format(linear: Linear, form: GroupFormat | None, scale_dtype: torch.dtype) -> Linear | GroupQuantizedLinear:
    if form is None:
        return linear
    return GroupQuantizedLinear(
        linear,
        bits=form.bits,
        group_size=form.group_size,
        scale_dtype=torch.float32 if scale_dtype is torch.float32 else getattr(torch, form.scale),
        has_minimum=form.has_minimum,
    )


def _empty(linear: Linear, scheme: Literal["int4", "w8a8"] | MatrixScheme, scale_dtype: torch.dtype) -> QuantizedLinear:
    outputs, inputs = linear.weight.shape
    match scheme:
        case "int8":
            return Int8Linear(linear)
        case "fp8":
            _check_multiple(scheme, inputs, "inputs", FP8_ALIGNMENT)
            _check_multiple(scheme, outputs, "outputs", FP8_ALIGNMENT)
            return Fp8Linear(linear)
        case "int4" | "w8a8":
            _check_multiple(scheme, inputs, "inputs", PACKED_INPUTS)
            return GroupQuantizedLinear(
                linear,
                bits=4 if scheme == "int4" else 8,
                group_size=next(size for size in GROUP_SIZES if inputs % size == 0),
                scale_dtype=scale_dtype,
                byte_inputs=scheme == "w8a8",
            )
        case GroupQuantization():
            group_size = scheme.group_size or inputs
            _check_multiple(scheme, inputs, "inputs", max(group_size, PACKED_INPUTS))
            return GroupQuantizedLinear(
                linear, bits=scheme.bits, group_size=group_size, scale_dtype=scale_dtype, desc_act=scheme.desc_act
            )
        case _:
            assert_never(scheme)


def _check_multiple(scheme: Literal["int4", "w8a8"] | MatrixScheme, size: int, what: str, multiple: int) -> None:
    if size % multiple:
        raise CheckpointError(f"{scheme} weights: expected a multiple of {multiple} {what} in each matrix, got {size}")
