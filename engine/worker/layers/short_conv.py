"""Gated short convolutions (arXiv 2511.23404), in plain torch: the reference implementation.

A token has three vectors b, c and x, and its output is c · conv(b · x): a convolution of each channel over the last
tokens, whose inputs the layer keeps. Numerics follow transformers' models/lfm2/modeling_lfm2.py, except that the
convolution and the product after it are computed in float32.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.decoder import ShortConvSizes
from glimpse.engine.worker.layers.delta_net import SingleTokens, StatePlan
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.tensors.kv_cache import LayerStates


class ShortConv(nn.Module):
    """The weights of a gated short convolution, but those of its output projection."""

    def __init__(self, sizes: ShortConvSizes, hidden_size: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.in_proj = Linear(hidden_size, (sizes.conv_width,) * 3, bias=False)  # b, c and x
        self.conv = empty_parameter(sizes.conv_width, sizes.conv_size)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the module's prefix. The second and third part of
        "in_proj" are in "in_proj_c" and "in_proj_x"."""
        yield from self.in_proj.named_weights("in_proj", "in_proj_c", "in_proj_x")
        yield "conv.weight", self.conv.data[:, None]


def short_conv(projected: Tensor, layer: ShortConv, states: LayerStates, plan: StatePlan) -> Tensor:
    """Updates the layer's states with a step's tokens, and computes the tokens' outputs.

    Args:
        projected: [tokens, 3 · conv_width], from `in_proj`.

    Returns:
        [tokens, conv_width]
    """
    before, after, x = projected.chunk(3, dim=1)
    inputs, output = before * x, torch.empty_like(x)
    for group in plan:
        if isinstance(group, SingleTokens):  # [tokens] sequences of one token
            rows, reads, writes = group.rows, group.reads, group.writes
            new = inputs[rows][:, None]
        else:
            rows = slice(group.row, group.row + group.num_rows)
            reads, writes = torch.tensor([[group.reads], [group.writes]], device=x.device)
            new = inputs[rows][None]
        old = states.conv[reads].masked_fill_((reads < 0)[:, None, None], 0)
        window = torch.cat([old, new], dim=1)  # [sequences, conv_size - 1 + tokens of each, conv_width]
        states.conv[writes] = window[:, new.shape[1] :]
        taps = window.float().unfold(1, layer.sizes.conv_size, 1)  # [sequences, tokens, conv_width, conv_size]
        convolved = (taps * layer.conv.float()).sum(dim=-1).flatten(0, 1)
        output[rows] = (after[rows].float() * convolved).to(x.dtype)
    return output
