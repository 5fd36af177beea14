"""Puts linears of a quantized form into a model whose weights are still to be loaded."""

from typing import Literal, TypeAlias, assert_never

import torch
from torch import nn

from glimpse.engine.config import Quantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.layers.fp8 import MULTIPLE, Fp8Linear
from glimpse.engine.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.layers.linear import Linear, QuantizedLinear, replace_linears
from glimpse.engine.quantization import PACKED_INPUTS, Fp8Quantization, GroupQuantization, StoredQuantization

GROUP_SIZES = (128, 64, 32)
"""Of int4 made at load: the first that divides the inputs."""

Form: TypeAlias = Literal["int8", "int4", "fp8"] | StoredQuantization
"""How linears are quantized: at load, or in the checkpoint already."""

AnyQuantizedLinear: TypeAlias = QuantizedLinear | GroupQuantizedLinear | Fp8Linear


def resolve_form(quantization: Quantization, stored: StoredQuantization | None) -> Form | None:
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


def quantize_linears(root: nn.Module, form: Form, *, scale_dtype: torch.dtype) -> None:
    """Makes every `Linear` one of this form, empty until it is loaded.

    Args:
        root: all in it.
        form: of their weights.
        scale_dtype: of scales that belong to groups.

    Raises:
        CheckpointError: the form is not for matrices of these sizes.
    """
    replace_linears(root, (Linear,), lambda linear, _parent: _empty(linear, form, scale_dtype))


def finish_loading(root: nn.Module) -> None:
    """What remains to be done once the weights are loaded.

    Raises:
        CheckpointError: the checkpoint's groups of inputs cannot be used.
    """
    for module in root.modules():
        if isinstance(module, GroupQuantizedLinear):
            module.sort_inputs()


def is_fp8(form: Form | None) -> bool:
    """Whether products are computed in FP8."""
    return form == "fp8" or isinstance(form, Fp8Quantization)


def _empty(linear: Linear, form: Form, scale_dtype: torch.dtype) -> AnyQuantizedLinear:
    outputs, inputs = linear.weight.shape
    match form:
        case "int8":
            return QuantizedLinear(linear)
        case "fp8" | Fp8Quantization():
            _check_multiple(form, inputs, "inputs", MULTIPLE)
            _check_multiple(form, outputs, "outputs", MULTIPLE)
            return Fp8Linear(linear)
        case "int4":
            _check_multiple(form, inputs, "inputs", PACKED_INPUTS)
            group_size = next(size for size in GROUP_SIZES if inputs % size == 0)
            return GroupQuantizedLinear(linear, bits=4, group_size=group_size, scale_dtype=scale_dtype)
        case GroupQuantization():
            group_size = form.group_size or inputs
            _check_multiple(form, inputs, "inputs", max(group_size, PACKED_INPUTS))
            return GroupQuantizedLinear(
                linear, bits=form.bits, group_size=group_size, scale_dtype=scale_dtype, reordered=form.reordered
            )
        case _:
            assert_never(form)


def _check_multiple(form: Form, size: int, what: str, multiple: int) -> None:
    if size % multiple:
        raise CheckpointError(f"{form} weights: a matrix of the model has {size} {what}, not a multiple of {multiple}")
