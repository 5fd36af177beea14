"""Random weights of tiny checkpoints, so scaled that answers depend on the whole prompt."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tests.checkpoints.tokenizer import VOCAB_SIZE

TINY_DECODER: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Sizes in `config.json` that most tiny checkpoints share."""

Named = tuple[str, torch.Tensor]


def draw_weights(model: torch.nn.Module) -> None:
    """Draws weights so that answers depend on the whole prompt, including images."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1 and "embed" not in name:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
            else:
                parameter.normal_(std=0.3)


def temper_attention(model: torch.nn.Module) -> None:
    """Makes scores of attention a quarter as large, unless queries have a norm: large ones magnify what sums round."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name.endswith("q_proj.weight") and name.replace("q_proj", "q_norm") not in parameters:
                parameter.mul_(0.25)
            elif name.endswith(("attn.qkv.weight", "qkv_proj.weight")):  # as many queries as inputs come first
                parameter[: parameter.shape[1]].mul_(0.25)


class Draw:
    """Draws random tensors."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def linear(self, name: str, rows: int, columns: int, *, gain: float = 1.0, bias: bool = True) -> Iterator[Named]:
        """Yields a weight matrix and a bias."""
        yield f"{name}.weight", torch.randn(rows, columns, generator=self.generator) * gain / math.sqrt(columns)
        if bias:
            yield f"{name}.bias", torch.randn(rows, generator=self.generator) * 0.1

    def norm(self, name: str, width: int, *, bias: bool = False) -> Iterator[Named]:
        """Yields norm weights around one and a bias."""
        yield f"{name}.weight", 1 + torch.randn(width, generator=self.generator) * 0.1
        if bias:
            yield f"{name}.bias", torch.randn(width, generator=self.generator) * 0.1

    def mlp(self, name: str, hidden: int, intermediate: int) -> Iterator[Named]:
        """Yields the weights of a gated MLP without biases."""
        yield from self.linear(f"{name}.gate_proj", intermediate, hidden, bias=False)
        yield from self.linear(f"{name}.up_proj", intermediate, hidden, bias=False)
        yield from self.linear(f"{name}.down_proj", hidden, intermediate, gain=1.5, bias=False)

    def vocabulary(self, name: str, hidden: int, readable_token_ids: list[int]) -> Iterator[Named]:
        """Yields an embedding table or an output head."""
        scale = torch.full((VOCAB_SIZE, 1), 0.02)
        scale[readable_token_ids] = 0.3
        yield f"{name}.weight", torch.randn(VOCAB_SIZE, hidden, generator=self.generator) * scale
