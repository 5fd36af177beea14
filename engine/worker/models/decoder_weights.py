"""How the tensors of checkpoints become those of the decoder, which differ in parts and order for some traits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig


def arrange(name: str, tensor: Tensor, text: TextConfig) -> Iterator[tuple[str, Tensor]]:
    """Yields the parts of a decoder's tensor.

    - Gates of attention's output, which stand behind the queries of each head, are a matrix of their own.
    - Where heads rotate only in part, or other pairs of dimensions, their rows are in the order of `reorder_heads`.
    - Norms are stored as factors. The factor of scores goes into the norm of queries, since a rotation does not change
      it. The norm of values has none in checkpoints.
    - Where keys are values, their projection is stored as that of values too.
    - The projection in front of a short convolution is that of its three inputs.

    Args:
        name: checkpoint name.
        tensor: [output features, …], or the groups of inputs of a quantized matrix.
        text: sizes of the whole decoder.
    """
    stem, _, kind = name.rpartition(".")
    layer, _, module = stem.rpartition(".")
    if (module.endswith("norm") or module.startswith("pre_fc_norm")) and not layer.endswith("linear_attn"):
        tensor = 1 + tensor.float() if text.zero_centered_norms else tensor
        if module == "q_norm" and text.score_factor is not None:
            tensor = tensor * (text.score_factor * len(tensor) ** 0.5)
    if module == "k_norm" and text.value_norms:
        yield f"{layer}.v_norm.{kind}", torch.ones_like(tensor)
    if module == "k_proj" and text.keys_are_values and text.layer_kinds[layer_index(name)] == "full":
        yield f"{layer}.v_proj.{kind}", tensor
    if module == "in_proj":
        parts = (tensor,) * 3 if kind == "group_index" else tensor.chunk(3)
        yield from ((f"{stem}{part}.{kind}", each) for part, each in zip(("", "_c", "_x"), parts, strict=True))
        return
    if kind != "group_index" and module == "q_proj" and text.output_gate:
        tensor, gate = (half.flatten(0, 1) for half in tensor.unflatten(0, (text.num_heads, 2, -1)).unbind(1))
        yield f"{layer}.q_gate.{kind}", gate
    elif module == "q_proj" and text.output_gate:
        yield f"{layer}.q_gate.{kind}", tensor
    is_other = text.rotary_dim != text.head_dim or text.alternating_rotary
    if is_other and module in ("q_proj", "k_proj", "q_norm", "k_norm") and kind != "group_index":
        tensor = reorder_heads(
            tensor, head_dim=text.head_dim, rotary_dim=text.rotary_dim, alternating=text.alternating_rotary
        )
    yield name, tensor


def layer_index(name: str) -> int:
    """Returns the layer that a tensor of the decoder belongs to, by its checkpoint name.

    Raises:
        ValueError: it belongs to none.
    """
    return int(name.partition(".layers.")[2].partition(".")[0])


def reorder_heads(tensor: Tensor, *, head_dim: int, rotary_dim: int, alternating: bool = False) -> Tensor:
    """Reorders each head's rows, [heads · head_dim, …], of which the first `rotary_dim` rotate.

    A checkpoint rotates the pairs (x[i], x[i + rotary_dim / 2]), or if they alternate, (x[2i], x[2i + 1]), and `rotate`
    the pairs (x[i], x[i + head_dim / 2]). Queries and keys that are reordered alike have the same products.
    """
    rotating, rest = tensor.unflatten(0, (-1, head_dim)).split([rotary_dim, head_dim - rotary_dim], dim=1)
    first, second = (rotating[:, 0::2], rotating[:, 1::2]) if alternating else rotating.chunk(2, dim=1)
    left, right = rest.chunk(2, dim=1)
    return torch.cat([first, left, second, right], dim=1).flatten(0, 1)
