"""Quantizes models in place."""

from torch import nn

from glimpse.engine.worker.layers.linear import Int8Linear, Linear, quantize_int8, replace_linears


def quantized(linear: Linear) -> Int8Linear:
    """Returns the linear with int8 weights."""
    result = Int8Linear(linear)
    stored = dict(result.named_weights(*map(str, range(len(linear.sizes)))))
    start = 0
    for index, size in enumerate(linear.sizes):
        for part, tensor in quantize_int8(linear.weight[start : start + size]).items():
            stored[f"{index}.{part}"].copy_(tensor)
        start += size
    return result


def quantize(root: nn.Module) -> None:
    """Replaces every `Linear` by an `Int8Linear`."""
    replace_linears(root, (Linear,), lambda linear, _parent: quantized(linear))
