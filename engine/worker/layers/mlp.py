"""Feed-forward blocks of the decoder and of encoders."""

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import ExpertsConfig
from glimpse.engine.worker.layers.linear import Linear, UnquantizedLinear, empty_parameter
from glimpse.engine.worker.layers.norm import RMSNorm

Activation: TypeAlias = Literal["quick_gelu", "gelu_tanh"]
"""An activation between the products of a feed-forward block without gates; see `activate`."""

GateActivation: TypeAlias = Literal["silu", "gelu_tanh"]
"""The activation of a feed-forward block's gates."""


class GatedMLP(nn.Module):
    """down(activation(gate(x)) · up(x)) (arXiv 2002.05202), with gate and up in one product."""

    def __init__(
        self, width: int, intermediate_size: int, *, bias: bool = False, activation: GateActivation = "silu"
    ) -> None:
        super().__init__()
        self.activation: GateActivation = activation
        self.gate_up_proj = Linear(width, (intermediate_size, intermediate_size), bias=bias)
        self.down_proj = Linear(intermediate_size, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, width] → [tokens, width]"""
        return self.down_proj(gated(self.gate_up_proj(x), self.activation))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights with their checkpoint names, without the module's prefix."""
        yield from self.gate_up_proj.named_weights("gate_proj", "up_proj")
        yield from self.down_proj.named_weights("down_proj")


class PlainMLP(nn.Module):
    """fc2(activation(fc1(x)))"""

    def __init__(self, width: int, intermediate_size: int, *, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.fc1 = Linear(width, intermediate_size, bias=True)
        self.fc2 = Linear(intermediate_size, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, width] → [patches, width]"""
        return self.fc2(activate(self.fc1(x), self.activation))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `GatedMLP.named_weights`."""
        yield from self.fc1.named_weights("fc1")
        yield from self.fc2.named_weights("fc2")


class ExpertsMLP(nn.Module):
    """A mixture of gated MLPs (arXiv 2101.03961): Σ weight · expert(x) over the experts that the router chooses for x,
    and over the shared one, the last, if there is one.

    Numerics follow transformers' models/qwen3_moe/modeling_qwen3_moe.py, and for the shared expert
    models/qwen3_5_moe/modeling_qwen3_5_moe.py and models/deepseek_ocr2/modeling_deepseek_ocr2.py, but weights and sums
    are in float32.
    """

    def __init__(
        self, width: int, config: ExpertsConfig, *, activation: GateActivation = "silu", norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.config = config
        self.activation: GateActivation = activation
        sizes = (config.intermediate_size,) * config.num_experts + (config.shared_size,) * self.shares
        scores = (config.num_experts, 1) if self._gates_share else (config.num_experts,)
        self.router = UnquantizedLinear(width, scores, bias=False)
        self.router_norm = RMSNorm(width, eps=norm_eps) if config.beside_mlp else None
        self.factors = empty_parameter(config.num_experts) if config.beside_mlp else None
        self.experts = nn.ModuleList(GatedMLP(width, size, activation=activation) for size in sizes)

    @property
    def shares(self) -> bool:
        """Whether the last expert computes all tokens."""
        return self.config.shared_size > 0

    @property
    def _gates_share(self) -> bool:
        return self.shares and self.config.shared_gate

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Returns [tokens, width] for [tokens, width], which are the layer's norm of `hidden`."""
        routed = x if self.router_norm is None else self.router_norm(hidden)
        return self.mix(x, self.router(routed), lambda expert, tokens: expert(x[tokens]))

    def mix(self, x: Tensor, scores: Tensor, compute: Callable[[GatedMLP, Tensor], Tensor]) -> Tensor:
        """Returns the weighted sum of the chosen experts' outputs.

        Args:
            x: [tokens, width]
            scores: the router's, [tokens, experts], and one more if it weighs the shared expert.
            compute: computes an expert for some rows of x, which are in order: int64 [rows].
        """
        chosen, weights = self.choose(scores)
        output = torch.zeros_like(x, dtype=torch.float32)
        for index in chosen.unique().tolist():
            tokens, places = torch.where(chosen == index)
            computed = compute(self.experts[index], tokens)  # type: ignore[arg-type]
            output.index_add_(0, tokens, computed.float() * weights[tokens, places, None])
        return output.to(x.dtype)

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the experts that compute each token, int64 [tokens, …], and their weights, float32 [tokens, …]."""
        routed, own = scores.float().tensor_split([self.config.num_experts], dim=-1)
        weights, chosen = routed.softmax(dim=-1).topk(self.config.num_chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True) if self.config.renormalized else weights
        weights = weights if self.factors is None else weights * self.factors[chosen]
        if self.shares:
            chosen = functional.pad(chosen, (0, 1), value=self.config.num_experts)
            share = own.sigmoid() if self._gates_share else torch.ones_like(weights[:, :1])
            weights = torch.cat([weights, share], dim=-1)
        return chosen, weights

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `GatedMLP.named_weights`."""
        yield from self.router.named_weights(*("gate", "shared_expert_gate")[: len(self.router.sizes)])
        if self.router_norm is not None and self.factors is not None:
            yield "router_norm.weight", self.router_norm.weight.data
            yield "factors", self.factors.data
        for index, expert in enumerate(self.experts):
            assert isinstance(expert, GatedMLP)
            yield from ((f"{self.name_of(index)}.{name}", tensor) for name, tensor in expert.named_weights())

    def name_of(self, index: int) -> str:
        """Returns what checkpoints call an expert."""
        return f"experts.{index}" if index < self.config.num_experts else "shared_expert"


def gated(gate_up: Tensor, activation: GateActivation) -> Tensor:
    """activation(gate) · up: [tokens, 2 · width], gates first → [tokens, width]"""
    gate, up = gate_up.chunk(2, dim=-1)
    return (functional.silu(gate) if activation == "silu" else activate(gate, activation)) * up


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Returns an approximation of GELU (arXiv 1606.08415, section 2): x · sigmoid(1.702 x), or the one with tanh."""
    match activation:
        case "quick_gelu":
            return x * torch.sigmoid(1.702 * x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
