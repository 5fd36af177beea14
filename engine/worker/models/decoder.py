"""A decoder over packed tokens, where embeddings of placeholder tokens come from a media encoder.

Its configuration has the traits in which Qwen2, Qwen3, Qwen3.5, LFM2, Llama, Mistral, Phi-3, Gemma 3 and 4 differ.
Numerics follow transformers' models/qwen2/modeling_qwen2.py and its siblings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import ExpertsConfig, LayerEmbeddings, LayerKind, TextConfig
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Int8Linear, Linear, empty_parameter
from glimpse.engine.worker.layers.mixers import LayerInputs, make_mixer
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP, activate
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import prefixed, weights_of_layers
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


class Decoder(nn.Module):
    """The decoder, from token ids to logits. Parameters are uninitialized until loaded through `named_weights`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.lm_head: Linear | Int8Linear | GroupQuantizedLinear = Linear(
            config.hidden_size, config.vocab_size, bias=False
        )
        shape = (config.vocab_size, config.hidden_size)
        # None: shares the weights of the output head. See also `quantize_head`.
        self.embed_tokens = None if config.tie_word_embeddings else empty_parameter(*shape)
        self.layer_embeddings = None if config.layer_embeddings is None else LayerEmbedder(config)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor], ops: Ops, *, narrows: bool
    ) -> Tensor:
        """Computes the batch's tokens, writes their keys and values to the cache, and returns logits of sampled rows.

        Args:
            cache: KV cache with all earlier tokens of the batch's sequences.
            encoder_outputs: encoder output of each media item in the batch, by key: one row per placeholder token, of
                `encoder_row_width` values.
            narrows: Other rows than sampled ones are computed only as far as later tokens need it.

        Returns:
            float32 [samples, vocab_size]
        """
        narrows = narrows and self.config.num_deepstack_layers < self.config.num_storing_layers
        hidden = self.hidden_states(batch, cache, encoder_outputs, ops, narrows=narrows)
        return self.logits(hidden if narrows else hidden[batch.sampled_rows], ops)

    def logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """Returns the logits of rows of `hidden_states`: [rows, hidden_size] → float32 [rows, vocab_size]"""
        logits, cap = ops.logits(hidden, self.norm, self.lm_head), self.config.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def hidden_states(
        self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor], ops: Ops, *, narrows: bool = False
    ) -> Tensor:
        """Computes all layers, but not the final norm: [tokens, hidden_size], or of sampled rows alone if it `narrows`.
        The arguments are those of `forward`."""
        hidden = self.embed(batch.token_ids)
        for rows in batch.media:
            encoded = encoded_rows(rows, encoder_outputs)
            hidden[rows.row : rows.row + rows.num_tokens] = encoded[:, : self.config.hidden_size]
        deepstack = self._deepstack(batch, encoder_outputs)
        added = None if self.layer_embeddings is None else self.layer_embeddings(batch, hidden, ops)
        inputs, narrowed = self._inputs(batch, cache, ops), batch if narrows else None
        return self._compute(hidden, inputs, cache, ops, deepstack=deepstack, added=added, narrowed=narrowed)

    def decode(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """Computes a decode step of sequences with one new token each. The launched kernels depend on shapes only.

        Not for decoders with sliding windows, nor, unless they are recorded, for those with states.

        Args:
            token_ids: int64 [sequences]
            positions: int64 [3, sequences]
            slots: int64 [sequences]

        Returns:
            float32 [sequences, vocab_size]
        """
        embedded, rotation = self.embed(token_ids), self.rotation(positions)
        return self.logits(self.decode_embedded(embedded, rotation, slots, plan, cache, ops), ops)

    def decode_embedded(
        self, hidden: Tensor, rotation: Rotation, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """Does what `decode` does, from embeddings, [sequences, hidden_size], and their rotation, up to the states of
        `hidden_states`. Calls `ops` alone if `is_recordable`."""
        inputs = LayerInputs(rotation, slots, plan)
        return self._compute(hidden, dict.fromkeys(self.config.layer_kinds, inputs), cache, ops)

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
        added: Tensor | None = None,
        narrowed: Batch | None = None,
    ) -> Tensor:
        """Runs all layers: [tokens, hidden_size] → [tokens, hidden_size].

        Args:
            added: See `LayerEmbedder`.
            narrowed: The batch, of which sampled rows alone are computed and returned after the last layer that stores
                something: no later token reads the others.
        """
        for index, (layer, kind) in enumerate(zip(self.layers, self.config.layer_kinds, strict=True)):
            arguments = (hidden, ops, inputs[kind], cache, index, None if added is None else added[:, index])
            if narrowed is None or index != self.config.num_storing_layers - 1:
                hidden = layer(*arguments)
            else:
                rows = narrowed.sampled_rows
                hidden, added = layer(*arguments, rows), None if added is None else added[rows]
                if not len(rows):
                    return hidden
                if self.config.num_sharing_layers:
                    inputs = self._inputs(narrowed.sampled(), cache, ops)
            if deepstack is not None and index < self.config.num_deepstack_layers:
                hidden[deepstack.rows] += deepstack.values[:, index]
        return hidden

    def full_inputs(self, batch: Batch, cache: KVCache, ops: Ops) -> LayerInputs:
        """Returns what layers that attend to all tokens share in a step."""
        causal = batch if self.config.bidirectional_full else replace(batch, bidirectional=())
        return LayerInputs(self.rotation(batch.positions), batch.slots, ops.plan_attention(causal, cache))

    def _inputs(self, batch: Batch, cache: KVCache, ops: Ops) -> Mapping[LayerKind, LayerInputs]:
        config, positions, slots = self.config, batch.positions, batch.slots
        full = self.full_inputs(batch, cache, ops)
        inputs: dict[LayerKind, LayerInputs] = {"full": full}
        if (sliding := config.sliding) is not None:
            dim = config.head_dim if sliding.kv_heads is None else sliding.kv_heads.dim
            rotation = multimodal_rotation(positions, head_dim=dim, theta=sliding.rope_theta, section=(dim // 2, 0, 0))
            if batch.sliding is not None:
                slots = batch.sliding.slots
                batch = replace(batch, block_tables=batch.sliding.block_tables)
            inputs["sliding"] = LayerInputs(rotation, slots, ops.plan_attention(batch, cache, sliding.window))
        if config.states is not None:
            inputs[config.states.kind] = full._replace(plan=ops.plan_states(batch, cache))
        return inputs

    def _deepstack(self, batch: Batch, encoder_outputs: Mapping[bytes, Tensor]) -> DeepStack | None:
        """Returns what the first layers add to the placeholder tokens of a batch; None if there is nothing to add."""
        if not self.config.num_deepstack_layers or not batch.media:
            return None
        rows = np.concatenate([np.arange(each.row, each.row + each.num_tokens) for each in batch.media])
        encoded = torch.cat([encoded_rows(each, encoder_outputs) for each in batch.media])
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
        if self.embed_tokens is None:
            yield from self.lm_head.named_weights("model.embed_tokens")
        else:
            yield "model.embed_tokens.weight", self.embed_tokens.data
        yield from weights_of_layers("model.layers.", self.layers)
        if self.layer_embeddings is not None:
            yield from prefixed("model.", self.layer_embeddings.named_weights())
        yield "model.norm.weight", self.norm.weight.data
        if self.embed_tokens is not None:
            yield from self.lm_head.named_weights("lm_head")

    def embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] → [tokens, hidden_size]"""
        if self.embed_tokens is None:
            embeddings = cast(Linear | GroupQuantizedLinear, self.lm_head).rows(token_ids)
        else:
            embeddings = functional.embedding(token_ids, self.embed_tokens)
        factor = self.config.embedding_factor
        return embeddings if factor == 1 else embeddings * torch.tensor(factor, dtype=embeddings.dtype).item()


def encoded_rows(rows: MediaRows, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
    """Returns the rows of an encoder output that belong to a batch."""
    return encoder_outputs[rows.key][rows.offset : rows.offset + rows.num_tokens]


def text_positions(first: int, num_tokens: int) -> npt.NDArray[np.int64]:
    """Returns [3, num_tokens]: consecutive positions from `first` on, equal in time, height and width."""
    return np.tile(np.arange(first, first + num_tokens, dtype=np.int64), (3, 1))


class DecoderLayer(nn.Module):
    """A mixer of tokens and feed-forward, each preceded by an RMSNorm and, with `output_norms`, followed by one."""

    def __init__(self, config: TextConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mixer = make_mixer(config, index)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = (
            ExpertsMLP(config.hidden_size, config.experts, activation=config.activation)
            if config.experts is not None and index in config.experts.layers and not config.experts.beside_mlp
            else GatedMLP(config.hidden_size, _mlp_width(config, index), activation=config.activation)
        )
        self.output_norms = OutputNorms(config) if config.output_norms else None
        self.mixture = (
            MixtureBesideMLP(config, config.experts)
            if config.experts is not None and config.experts.beside_mlp
            else None
        )
        self.addition = None if config.layer_embeddings is None else LayerAddition(config, config.layer_embeddings)
        self.factor = empty_parameter(1) if config.layer_factors else None

    def forward(
        self,
        hidden: Tensor,
        ops: Ops,
        inputs: LayerInputs,
        cache: KVCache,
        index: int,
        added: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size], for the layer of this index.

        Args:
            added: The part for this layer of what `LayerEmbedder` returns.
            rows: int64: the only tokens that are computed once all are stored, and returned.
        """
        mixed = self.mixer(hidden, self.input_layernorm, ops, inputs, cache, index)
        if rows is not None:
            mixed, hidden, added = mixed[rows], hidden[rows], None if added is None else added[rows]
            if not len(rows):
                return hidden
        if (norms := self.output_norms) is not None:
            hidden = hidden + norms.attention(ops.linear_add(mixed, self.mixer.out, None))
            output = ops.norm_mlp_add(hidden, self.post_attention_layernorm, self.mlp, residual=False)
            if self.mixture is not None:
                output = self.mixture(output, hidden, ops)
            hidden = hidden + norms.feed_forward(output)
            if self.addition is not None and added is not None:
                hidden = self.addition(hidden, added, ops)
            return hidden if self.factor is None else hidden * self.factor
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
        yield from prefixed("mlp.", self.mlp.named_weights())
        if self.mixture is not None:
            yield from self.mixture.named_weights()
        if self.addition is not None:
            yield from self.addition.named_weights()
        if self.factor is not None:
            yield "layer_scalar", self.factor.data


def _mlp_width(config: TextConfig, index: int) -> int:
    shares = config.cache_layer(index) != index
    return config.intermediate_size * (config.sharing_mlp_factor if shares else 1)


class MixtureBesideMLP(nn.Module):
    """Experts whose outputs are added to those of a layer's MLP, with a norm of each."""

    def __init__(self, config: TextConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.mlp_norm, self.norm, self.output_norm = (RMSNorm(width, eps=eps) for _ in range(3))
        self.experts = ExpertsMLP(width, experts, activation=config.activation, norm_eps=eps)

    def forward(self, output: Tensor, hidden: Tensor, ops: Ops) -> Tensor:
        """Returns the sum, from outputs of the MLP and what it computed them of: [tokens, hidden_size]"""
        mixed = ops.norm_mlp_add(hidden, self.norm, self.experts, residual=False)
        return self.mlp_norm(output) + self.output_norm(mixed)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield "post_feedforward_layernorm_1.weight", self.mlp_norm.weight.data
        yield "pre_feedforward_layernorm_2.weight", self.norm.weight.data
        yield "post_feedforward_layernorm_2.weight", self.output_norm.weight.data
        yield from prefixed("mlp.", self.experts.named_weights())


class LayerEmbedder(nn.Module):
    """What layers add to the hidden states of tokens, from embeddings of their own and from the tokens' embeddings."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        assert config.layer_embeddings is not None
        self.sizes = config.layer_embeddings
        width = config.num_layers * self.sizes.width
        self.table = empty_parameter(self.sizes.vocab_size, width)
        self.projection = Linear(config.hidden_size, width, bias=False)
        self.norm = RMSNorm(self.sizes.width, eps=config.rms_norm_eps)

    def forward(self, batch: Batch, embedded: Tensor, ops: Ops) -> Tensor:
        """Returns [tokens, layers, width] for a batch whose embeddings are [tokens, hidden_size]."""
        token_ids = batch.token_ids.clone()
        for rows in batch.media:
            token_ids[rows.row : rows.row + rows.num_tokens] = self.sizes.media_token_id
        own = functional.embedding(token_ids, self.table).unflatten(1, (-1, self.sizes.width))
        projected = ops.linear_add(embedded, self.projection, None).unflatten(1, (-1, self.sizes.width))
        projected = self.norm(projected * embedded.shape[1] ** -0.5)
        return (projected + own * self.sizes.width**0.5) * 0.5**0.5

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the decoder's prefix."""
        yield "embed_tokens_per_layer.weight", self.table.data
        yield from self.projection.named_weights("per_layer_model_projection")
        yield "per_layer_projection_norm.weight", self.norm.weight.data


class LayerAddition(nn.Module):
    """The sum of a layer's output and a projection of its part of `LayerEmbedder`, gated by the output."""

    def __init__(self, config: TextConfig, sizes: LayerEmbeddings) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, sizes.width, bias=False)
        self.projection = Linear(sizes.width, config.hidden_size, bias=False)
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, added: Tensor, ops: Ops) -> Tensor:
        """[tokens, hidden_size], [tokens, width] → [tokens, hidden_size]"""
        gated = activate(ops.linear_add(hidden, self.gate, None), "gelu_tanh") * added
        return hidden + self.norm(ops.linear_add(gated, self.projection, None))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from self.gate.named_weights("per_layer_input_gate")
        yield from self.projection.named_weights("per_layer_projection")
        yield "post_per_layer_input_norm.weight", self.norm.weight.data


class OutputNorms(nn.Module):
    """Norms of the outputs of attention and of the feed-forward block, before they are added."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.attention = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feed_forward = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
