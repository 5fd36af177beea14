"""What a decoder's layers do before their MLPs: attention, gated delta nets, and gated short convolutions.

Each mixes the tokens of a sequence, from hidden states before the layer's norm to the inputs of its output projection.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes, ShortConvSizes, TextConfig
from glimpse.engine.worker.layers.delta_net import DeltaNet
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.rotary import Rotation
from glimpse.engine.worker.layers.short_conv import ShortConv
from glimpse.engine.worker.tensors.kv_cache import KVCache


class LayerInputs(NamedTuple):
    """What layers of one kind share in a step."""

    rotation: Rotation
    """Rotation of queries and keys; of no meaning to layers that keep states."""
    slots: Tensor
    """int64 [tokens]: where keys and values are written."""
    plan: Any
    """From the backend's `plan_attention` or `plan_states`."""


class Attention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245) without its output projection, `out`."""

    def __init__(self, config: TextConfig, index: int) -> None:
        super().__init__()
        (num_kv_heads, head_dim), hidden_size = config.kv_heads(index), config.hidden_size
        self.stores = config.cache_layer(index) == index
        counts = (config.num_heads, num_kv_heads, num_kv_heads) if self.stores else (config.num_heads,)
        widths = [heads * head_dim for heads in counts]
        self.qkv_proj = Linear(hidden_size, widths, bias=config.qkv_bias)
        self.gate_proj = Linear(hidden_size, widths[0], bias=False) if config.output_gate else None
        self.out = Linear(widths[0], hidden_size, bias=False)
        values = config.value_norms and self.stores
        self.head_norms = (
            HeadNorms(head_dim, eps=config.rms_norm_eps, keys=self.stores, values=values) if config.head_norms else None
        )

    def forward(
        self, hidden: Tensor, norm: RMSNorm, ops: Ops, inputs: LayerInputs, cache: KVCache, index: int
    ) -> Tensor:
        """[tokens, hidden_size], before the norm → [tokens, heads · head_dim]"""
        rotation, slots, plan = inputs
        layer = cache.layer(index)
        qkv = ops.norm_linear(hidden, norm, self.qkv_proj)
        query = ops.rotate_and_store(qkv, rotation, layer if self.stores else None, slots, self.head_norms)
        attended = ops.attend(query, layer, plan).flatten(1)  # [tokens, heads · head_dim]
        if self.gate_proj is None:
            return attended
        return ops.gate(attended, ops.norm_linear(hidden, norm, self.gate_proj))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix. Those of gates, which checkpoints
        have in "q_proj", are in "q_gate"."""
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield from self.qkv_proj.named_weights(*names[: len(self.qkv_proj.sizes)])
        if self.gate_proj is not None:
            yield from self.gate_proj.named_weights("self_attn.q_gate")
        if (heads := self.head_norms) is not None:
            parts = (("q_norm", heads.query), ("k_norm", heads.key), ("v_norm", heads.value))
            yield from ((f"self_attn.{name}.weight", norm.weight.data) for name, norm in parts if norm is not None)
        yield from self.out.named_weights("self_attn.o_proj")


class DeltaNetMixer(nn.Module):
    """A gated delta net without its output projection, `out`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        assert isinstance(config.states, DeltaNetSizes)
        self.net = DeltaNet(config.states, config.hidden_size, eps=config.rms_norm_eps)
        self.out = Linear(config.states.value_width, config.hidden_size, bias=False)

    def forward(
        self, hidden: Tensor, norm: RMSNorm, ops: Ops, inputs: LayerInputs, cache: KVCache, index: int
    ) -> Tensor:
        """[tokens, hidden_size], before the norm → [tokens, value_width]"""
        projected = ops.norm_linear(hidden, norm, self.net.in_proj)
        rates = ops.norm_linear(hidden, norm, self.net.rates_proj)
        return ops.delta_net(projected, rates, self.net, cache.layer_states(index), inputs.plan)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from ((f"linear_attn.{name}", tensor) for name, tensor in self.net.named_weights())
        yield from self.out.named_weights("linear_attn.out_proj")


class ShortConvMixer(nn.Module):
    """A gated short convolution without its output projection, `out`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        assert isinstance(config.states, ShortConvSizes)
        self.layer = ShortConv(config.states, config.hidden_size)
        self.out = Linear(config.states.conv_width, config.hidden_size, bias=False)

    def forward(
        self, hidden: Tensor, norm: RMSNorm, ops: Ops, inputs: LayerInputs, cache: KVCache, index: int
    ) -> Tensor:
        """[tokens, hidden_size], before the norm → [tokens, conv_width]"""
        projected = ops.norm_linear(hidden, norm, self.layer.in_proj)
        return ops.short_conv(projected, self.layer, cache.layer_states(index), inputs.plan)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix; see `ShortConv`."""
        yield from ((f"conv.{name}", tensor) for name, tensor in self.layer.named_weights())
        yield from self.out.named_weights("conv.out_proj")


def make_mixer(config: TextConfig, index: int) -> Attention | DeltaNetMixer | ShortConvMixer:
    """Returns the mixer of a layer without its weights."""
    match config.layer_kinds[index]:
        case "delta_net":
            return DeltaNetMixer(config)
        case "short_conv":
            return ShortConvMixer(config)
        case _:
            return Attention(config, index)
