"""A decoder over packed tokens, where embeddings of placeholder tokens come from a media encoder.

Its configuration has the traits in which Qwen2, Qwen3, Qwen3.5, Llama, Mistral, Phi-3 and Gemma 3 differ. Numerics
follow transformers' models/qwen2/modeling_qwen2.py and its siblings.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import LayerKind, TextConfig
from glimpse.engine.worker.layers.delta_net import DeltaNet
from glimpse.engine.worker.layers.linear import Int8Linear, Linear
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP
from glimpse.engine.worker.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.rotary import Rotation, multimodal_rotation
from glimpse.engine.worker.tensors.batch import Batch, MediaRows
from glimpse.engine.worker.tensors.kv_cache import KVCache
from glimpse.engine.worker.tensors.transfer import upload


class DeepStack(NamedTuple):
    """What a decoder's first layers add to the hidden states of placeholder tokens (arXiv 2406.04334)."""

    rows: Tensor
    """int64 [placeholder tokens]: their rows in the batch."""
    values: Tensor
    """[placeholder tokens, layers, hidden_size]"""


class LayerInputs(NamedTuple):
    """What layers of one kind share in a step."""

    rotation: Rotation
    """Rotation of queries and keys; of no meaning to gated delta nets."""
    slots: Tensor
    """int64 [tokens]: where keys and values are written."""
    plan: Any
    """From the backend's `plan_attention` or `plan_states`."""


class Decoder(nn.Module):
    """The decoder, from token ids to logits. Parameters are uninitialized until loaded through `named_weights`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.lm_head: Linear | Int8Linear = Linear(config.hidden_size, config.vocab_size, bias=False)
        shape = (config.vocab_size, config.hidden_size)
        # None: shares the weights of the output head. See also `quantize_head`.
        self.embed_tokens = (
            None if config.tie_word_embeddings else nn.Parameter(torch.empty(shape), requires_grad=False)
        )
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor], ops: Ops) -> Tensor:
        """Computes the batch's tokens, writes their keys and values to the cache, and returns logits of sampled rows.

        Args:
            batch: batch of this step.
            cache: KV cache with all earlier tokens of the batch's sequences.
            encoder_outputs: encoder output of each media item in the batch, by key: one row per placeholder token, of
                `encoder_row_width` values.
            ops: backend.

        Returns:
            float32 [samples, vocab_size]
        """
        hidden = self.hidden_states(batch, cache, encoder_outputs, ops)
        return ops.logits(hidden[batch.sampled_rows], self.norm, self.lm_head)

    def hidden_states(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor], ops: Ops) -> Tensor:
        """Computes all layers, but not the final norm: [tokens, hidden_size]. The arguments are those of `forward`."""
        hidden = self._embed(batch.token_ids)
        for rows in batch.media:
            encoded = _encoded_rows(rows, encoder_outputs)
            hidden[rows.row : rows.row + rows.num_tokens] = encoded[:, : self.config.hidden_size]
        deepstack = self._deepstack(batch, encoder_outputs)
        return self._compute(hidden, self._inputs(batch, cache, ops), cache, ops, deepstack=deepstack)

    def decode(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """Computes a decode step of sequences with one new token each. The launched kernels depend on shapes only.

        Not for decoders with sliding windows, nor, unless they are recorded, for those with states.

        Args:
            token_ids: int64 [sequences]
            positions: int64 [3, sequences]
            slots: int64 [sequences]
            plan: attention plan from the backend's `plan_attention`.
            cache: as for `forward`.
            ops: backend.

        Returns:
            float32 [sequences, vocab_size]
        """
        return self.decode_embedded(self._embed(token_ids), self.rotation(positions), slots, plan, cache, ops)

    def decode_embedded(
        self, hidden: Tensor, rotation: Rotation, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """Does what `decode` does, from embeddings, [sequences, hidden_size], and their rotation. Calls `ops` alone if
        `is_recordable`."""
        inputs = LayerInputs(rotation, slots, plan)
        hidden = self._compute(hidden, {"full": inputs, "delta_net": inputs}, cache, ops)
        return ops.logits(hidden, self.norm, self.lm_head)

    @property
    def is_recordable(self) -> bool:
        """Whether a decode step from token ids is the lookup of embeddings and then operations of `Ops` alone."""
        config = self.config
        return config.embedding_factor == 1 and not config.output_norms and config.sliding is None

    def rotation(self, positions: Tensor) -> Rotation:
        """Returns the rotation of tokens at positions, int64 [3, tokens]."""
        config = self.config
        return multimodal_rotation(
            positions,
            head_dim=config.head_dim,
            theta=config.rope_theta,
            section=config.mrope_section,
            interleaved=config.mrope_interleaved,
            rotary_dim=config.rotary_dim,
            scaling=config.rope_scaling,
        )

    def _compute(
        self,
        hidden: Tensor,
        inputs: Mapping[LayerKind, LayerInputs],
        cache: KVCache,
        ops: Ops,
        *,
        deepstack: DeepStack | None = None,
    ) -> Tensor:
        """Runs all layers: [tokens, hidden_size] → [tokens, hidden_size]"""
        for index, (layer, kind) in enumerate(zip(self.layers, self.config.layer_kinds, strict=True)):
            hidden = layer(hidden, ops, inputs[kind], cache, index)
            if deepstack is not None and index < self.config.num_deepstack_layers:
                hidden[deepstack.rows] += deepstack.values[:, index]
        return hidden

    def _inputs(self, batch: Batch, cache: KVCache, ops: Ops) -> Mapping[LayerKind, LayerInputs]:
        """Returns the inputs of the layers of each kind."""
        config, positions, slots = self.config, batch.positions, batch.slots
        full = LayerInputs(self.rotation(positions), slots, ops.plan_attention(batch, cache))
        inputs: dict[LayerKind, LayerInputs] = {"full": full}
        if (sliding := config.sliding) is not None:
            rotation = multimodal_rotation(
                positions, head_dim=config.head_dim, theta=sliding.rope_theta, section=config.mrope_section
            )
            inputs["sliding"] = LayerInputs(rotation, slots, ops.plan_attention(batch, cache, sliding.window))
        if config.delta_net is not None:
            inputs["delta_net"] = full._replace(plan=ops.plan_states(batch, cache))
        return inputs

    def _deepstack(self, batch: Batch, encoder_outputs: Mapping[bytes, Tensor]) -> DeepStack | None:
        """Returns what the first layers add to the placeholder tokens of a batch; None if there is nothing to add."""
        if not self.config.num_deepstack_layers or not batch.media:
            return None
        rows = np.concatenate([np.arange(each.row, each.row + each.num_tokens) for each in batch.media])
        encoded = torch.cat([_encoded_rows(each, encoder_outputs) for each in batch.media])
        return DeepStack(
            rows=upload({"rows": rows}, encoded.device)["rows"],
            values=encoded[:, self.config.hidden_size :].unflatten(1, (-1, self.config.hidden_size)),
        )

    def quantize_head(self) -> None:
        """Quantizes the output head to int8. The embedding keeps unquantized weights, also if they were shared."""
        assert isinstance(self.lm_head, Linear)
        if self.embed_tokens is None:
            self.embed_tokens = self.lm_head.weight
        self.lm_head = Int8Linear.quantized(self.lm_head)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their names in text-only checkpoints; matrices of fused linears are views.

        Must be called before the output head is quantized or a backend repacks the weights.
        """
        embed_tokens = self.lm_head.weight if self.embed_tokens is None else self.embed_tokens
        yield "model.embed_tokens.weight", embed_tokens.data
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            yield from ((f"model.layers.{index}.{name}", tensor) for name, tensor in layer.named_weights())
        yield "model.norm.weight", self.norm.weight.data
        if self.embed_tokens is not None:
            yield from self.lm_head.named_weights("lm_head")

    def _embed(self, token_ids: Tensor) -> Tensor:
        if self.embed_tokens is None:
            embeddings = cast(Linear, self.lm_head).rows(token_ids)
        else:
            embeddings = functional.embedding(token_ids, self.embed_tokens)
        factor = self.config.embedding_factor
        return embeddings if factor == 1 else embeddings * torch.tensor(factor, dtype=embeddings.dtype).item()


def _encoded_rows(rows: MediaRows, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
    """Returns the rows of an encoder output that belong to a batch."""
    return encoder_outputs[rows.key][rows.offset : rows.offset + rows.num_tokens]


def text_positions(first: int, num_tokens: int) -> npt.NDArray[np.int64]:
    """Returns [3, num_tokens]: consecutive positions from `first` on, equal in time, height and width."""
    return np.tile(np.arange(first, first + num_tokens, dtype=np.int64), (3, 1))


class DecoderLayer(nn.Module):
    """Attention or a gated delta net, and feed-forward, each preceded by an RMSNorm and, with `output_norms`, followed
    by one."""

    def __init__(self, config: TextConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        is_delta_net = config.layer_kinds[index] == "delta_net"
        self.mixer: Attention | DeltaNetMixer = DeltaNetMixer(config) if is_delta_net else Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = (
            ExpertsMLP(config.hidden_size, config.experts, activation=config.activation)
            if config.experts is not None and index in config.experts.layers
            else GatedMLP(config.hidden_size, config.intermediate_size, activation=config.activation)
        )
        self.output_norms = OutputNorms(config) if config.output_norms else None

    def forward(self, hidden: Tensor, ops: Ops, inputs: LayerInputs, cache: KVCache, index: int) -> Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size], for the layer of this index."""
        mixed = self.mixer(hidden, self.input_layernorm, ops, inputs, cache, index)
        if (norms := self.output_norms) is not None:
            hidden = hidden + norms.attention(ops.linear_add(mixed, self.mixer.out, None))
            output = ops.norm_mlp_add(hidden, self.post_attention_layernorm, self.mlp, residual=False)
            return hidden + norms.feed_forward(output)
        hidden = ops.linear_add(mixed, self.mixer.out, hidden)
        return ops.norm_mlp_add(hidden, self.post_attention_layernorm, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield "input_layernorm.weight", self.input_layernorm.weight.data
        yield from self.mixer.named_weights()
        if (norms := self.output_norms) is None:
            yield "post_attention_layernorm.weight", self.post_attention_layernorm.weight.data
        else:
            yield "post_attention_layernorm.weight", norms.attention.weight.data
            yield "pre_feedforward_layernorm.weight", self.post_attention_layernorm.weight.data
            yield "post_feedforward_layernorm.weight", norms.feed_forward.weight.data
        yield from ((f"mlp.{name}", tensor) for name, tensor in self.mlp.named_weights())


class OutputNorms(nn.Module):
    """Norms of the outputs of attention and of the feed-forward block, before they are added."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.attention = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feed_forward = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Attention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245) without its output projection, `out`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        head_dim, hidden_size = config.head_dim, config.hidden_size
        widths = [heads * head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        self.qkv_proj = Linear(hidden_size, widths, bias=config.qkv_bias)
        self.gate_proj = Linear(hidden_size, widths[0], bias=False) if config.output_gate else None
        self.out = Linear(widths[0], hidden_size, bias=False)
        self.head_norms = HeadNorms(head_dim, eps=config.rms_norm_eps) if config.head_norms else None

    def forward(
        self, hidden: Tensor, norm: RMSNorm, ops: Ops, inputs: LayerInputs, cache: KVCache, index: int
    ) -> Tensor:
        """[tokens, hidden_size], before the norm → [tokens, heads · head_dim]"""
        rotation, slots, plan = inputs
        layer = cache.layer(index)
        qkv = ops.norm_linear(hidden, norm, self.qkv_proj)
        query = ops.rotate_and_store(qkv, rotation, layer, slots, self.head_norms)
        attended = ops.attend(query, layer, plan).flatten(1)  # [tokens, heads · head_dim]
        if self.gate_proj is None:
            return attended
        return ops.gate(attended, ops.norm_linear(hidden, norm, self.gate_proj))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix. Those of gates, which checkpoints
        have in "q_proj", are in "q_gate"."""
        yield from self.qkv_proj.named_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        if self.gate_proj is not None:
            yield from self.gate_proj.named_weights("self_attn.q_gate")
        if (heads := self.head_norms) is not None:
            yield "self_attn.q_norm.weight", heads.query.weight.data
            yield "self_attn.k_norm.weight", heads.key.weight.data
        yield from self.out.named_weights("self_attn.o_proj")


class DeltaNetMixer(nn.Module):
    """A gated delta net without its output projection, `out`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        assert config.delta_net is not None
        self.net = DeltaNet(config.delta_net, config.hidden_size, eps=config.rms_norm_eps)
        self.out = Linear(config.delta_net.value_width, config.hidden_size, bias=False)

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
