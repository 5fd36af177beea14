"""Puts linears of a quantized scheme into a model whose weights are still to be loaded."""

from typing import Literal, TypeAlias, assert_never

import torch
from torch import nn

from glimpse.engine.config import Quantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.layers.fp8 import MULTIPLE, Fp8Linear
from glimpse.engine.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.layers.linear import Int8Linear, Linear, replace_linears
from glimpse.engine.quantization import PACKED_INPUTS, CheckpointQuantization, Fp8Quantization, GroupQuantization

GROUP_SIZES = (128, 64, 32)
"""Of int4 made at load: the first that divides the inputs."""

QuantizationScheme: TypeAlias = Literal["int8", "int4", "fp8"] | CheckpointQuantization
"""How linears are quantized: at load, or in the checkpoint already."""

QuantizedLinear: TypeAlias = Int8Linear | GroupQuantizedLinear | Fp8Linear


def resolve_scheme(quantization: Quantization, stored: CheckpointQuantization | None) -> QuantizationScheme | None:
    """How the decoder's weights are to be kept; None: as they are computed with.

    Args:
        quantization: what is asked for.
        stored: what the checkpoint is.

    Raises:
        CheckpointError: the two contradict each other.
    """
    if stored is None:
        return None if quantization == "none" else quantization
    if quantization not in ("none", stored.kind):
        raise CheckpointError(f"--quantization {quantization}: the checkpoint is quantized already: {stored}")
    return stored


def quantize_linears(root: nn.Module, scheme: QuantizationScheme, *, scale_dtype: torch.dtype) -> None:
    """Makes every `Linear` one of this scheme, empty until it is loaded.

    Args:
        root: all in it.
        scheme: of their weights.
        scale_dtype: of scales that belong to groups.

    Raises:
        CheckpointError: the scheme is not for matrices of these sizes.
    """
    replace_linears(root, (Linear,), lambda linear, _parent: _empty(linear, scheme, scale_dtype))


def process_weights_after_loading(root: nn.Module) -> None:
    """What remains to be done once the weights are loaded.

    Raises:
        CheckpointError: the checkpoint's groups of inputs cannot be used.
    """
    for module in root.modules():
        if isinstance(module, GroupQuantizedLinear):
            module.sort_inputs()


def is_fp8(scheme: QuantizationScheme | None) -> bool:
    """Whether products are computed in FP8."""
    return scheme == "fp8" or isinstance(scheme, Fp8Quantization)


def _empty(linear: Linear, scheme: QuantizationScheme, scale_dtype: torch.dtype) -> QuantizedLinear:
    outputs, inputs = linear.weight.shape
    match scheme:
        case "int8":
            return Int8Linear(linear)
        case "fp8" | Fp8Quantization():
            _check_multiple(scheme, inputs, "inputs", MULTIPLE)
            _check_multiple(scheme, outputs, "outputs", MULTIPLE)
            return Fp8Linear(linear)
        case "int4":
            _check_multiple(scheme, inputs, "inputs", PACKED_INPUTS)
            group_size = next(size for size in GROUP_SIZES if inputs % size == 0)
            return GroupQuantizedLinear(linear, bits=4, group_size=group_size, scale_dtype=scale_dtype)
        case GroupQuantization():
            group_size = scheme.group_size or inputs
            _check_multiple(scheme, inputs, "inputs", max(group_size, PACKED_INPUTS))
            return GroupQuantizedLinear(
                linear, bits=scheme.bits, group_size=group_size, scale_dtype=scale_dtype, reordered=scheme.reordered
            )
        case _:
            assert_never(scheme)


def _check_multiple(scheme: QuantizationScheme, size: int, what: str, multiple: int) -> None:
    if size % multiple:
        raise CheckpointError(
            f"{scheme} weights: a matrix of the model has {size} {what}, not a multiple of {multiple}"
        )
