"""A decoder over packed tokens, where embeddings of placeholder tokens come from a media encoder.

Its configuration has the traits in which Qwen2, Qwen3, Llama, Mistral and Phi-3 differ. Numerics follow transformers'
models/qwen2/modeling_qwen2.py and its siblings.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.layers.linear import Int8Linear, Linear
from glimpse.engine.layers.mlp import GatedMLP
from glimpse.engine.layers.norm import HeadNorms, RMSNorm
from glimpse.engine.layers.ops import Ops
from glimpse.engine.layers.rotary import Rotation, multimodal_rotation
from glimpse.engine.model_config import TextConfig
from glimpse.engine.tensors.batch import Batch
from glimpse.engine.tensors.kv_cache import KVCache, LayerCache


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
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor], ops: Ops) -> Tensor:
        """Computes the batch's tokens, writes their keys and values to the cache, and returns logits of sampled rows.

        Args:
            batch: batch of this step.
            cache: KV cache with all earlier tokens of the batch's sequences.
            encoder_outputs: encoder output of each media item in the batch, by key: one row per placeholder token.
            ops: backend.

        Returns:
            float32 [samples, vocab_size]
        """
        hidden = self._embed(batch.token_ids)
        for rows in batch.media:
            encoded = encoder_outputs[rows.key][rows.offset : rows.offset + rows.num_tokens]
            hidden[rows.row : rows.row + rows.num_tokens] = encoded
        plan = ops.plan_attention(batch, cache)
        hidden = self._compute(hidden, self.rotation(batch.positions), batch.slots, plan, cache, ops)
        return ops.logits(hidden[batch.sampled_rows], self.norm, self.lm_head)

    def decode(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """Computes a decode step of sequences with one new token each. The launched kernels depend on shapes only.

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
        """As `decode`, from the tokens' embeddings, [sequences, hidden_size], and their rotation. Calls `ops` alone."""
        return ops.logits(self._compute(hidden, rotation, slots, plan, cache, ops), self.norm, self.lm_head)

    def rotation(self, positions: Tensor) -> Rotation:
        """Returns the rotation of tokens at positions, int64 [3, tokens]."""
        config = self.config
        return multimodal_rotation(
            positions,
            head_dim=config.head_dim,
            theta=config.rope_theta,
            section=config.mrope_section,
            scaling=config.rope_scaling,
        )

    def _compute(
        self, hidden: Tensor, rotation: Rotation, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """Runs all layers: [tokens, hidden_size] → [tokens, hidden_size]"""
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, ops, rotation, cache.layer(index), slots, plan)
        return hidden

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
            return cast(Linear, self.lm_head).rows(token_ids)
        return functional.embedding(token_ids, self.embed_tokens)


def text_positions(first: int, num_tokens: int) -> npt.NDArray[np.int64]:
    """Returns [3, num_tokens]: consecutive positions from `first` on, equal in time, height and width."""
    return np.tile(np.arange(first, first + num_tokens, dtype=np.int64), (3, 1))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each preceded by an RMSNorm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(
        self, hidden: Tensor, ops: Ops, rotation: Rotation, cache: LayerCache, slots: Tensor, plan: Any
    ) -> Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]"""
        qkv = ops.norm_linear(hidden, self.input_layernorm, self.self_attn.qkv_proj)
        query = ops.rotate_and_store(qkv, rotation, cache, slots, self.self_attn.head_norms)
        attended = ops.attend(query, cache, plan)  # [tokens, heads, head_dim]
        hidden = ops.linear_add(attended.flatten(1), self.self_attn.o_proj, hidden)
        return ops.norm_mlp_add(hidden, self.post_attention_layernorm, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield "input_layernorm.weight", self.input_layernorm.weight.data
        yield from self.self_attn.qkv_proj.named_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        if (norms := self.self_attn.head_norms) is not None:
            yield "self_attn.q_norm.weight", norms.query.weight.data
            yield "self_attn.k_norm.weight", norms.key.weight.data
        yield from self.self_attn.o_proj.named_weights("self_attn.o_proj")
        yield "post_attention_layernorm.weight", self.post_attention_layernorm.weight.data
        yield from ((f"mlp.{name}", tensor) for name, tensor in self.mlp.named_weights())


class Attention(nn.Module):
    """The weights of grouped-query attention (arXiv 2305.13245)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        head_dim = config.head_dim
        widths = [heads * head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        self.qkv_proj = Linear(config.hidden_size, widths, bias=config.qkv_bias)
        self.o_proj = Linear(widths[0], config.hidden_size, bias=False)
        self.head_norms = HeadNorms(head_dim, eps=config.rms_norm_eps) if config.head_norms else None
