"""Qwen2's decoder over packed tokens, some of whose embeddings come from an encoder of media.

Numerics follow transformers' models/qwen2/modeling_qwen2.py. Knows neither what is encoded nor where its tokens stand.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.layers.linear import Linear
from glimpse.engine.layers.mlp import GatedMLP
from glimpse.engine.layers.norm import RMSNorm
from glimpse.engine.layers.ops import Ops
from glimpse.engine.layers.rotary import Rotation, multimodal_rotation
from glimpse.engine.model_config import TextConfig
from glimpse.engine.tensors.batch import Batch
from glimpse.engine.tensors.kv_cache import KVCache, LayerCache


class Decoder(nn.Module):
    """From token ids to logits. Its parameters are empty until they are loaded through `named_weights`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        shape = (config.vocab_size, config.hidden_size)
        # None: the output head's own weights.
        self.embed_tokens = (
            None if config.tie_word_embeddings else nn.Parameter(torch.empty(shape), requires_grad=False)
        )
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor], ops: Ops) -> Tensor:
        """Computes the batch's tokens, writes their keys and values, and scores what follows the sampled rows.

        Args:
            batch: of this step.
            cache: holds all earlier tokens of the batch's sequences.
            encoder_outputs: by key, the rows that stand for the tokens of every medium that the batch touches.
            ops: the backend.

        Returns:
            float32 [samples, vocab_size]
        """
        hidden = self._embed(batch.token_ids)
        for rows in batch.media:
            encoded = encoder_outputs[rows.key][rows.offset : rows.offset + rows.num_tokens]
            hidden[rows.row : rows.row + rows.num_tokens] = encoded
        plan = ops.plan_attention(
            query_lengths=batch.query_lengths,
            key_lengths=batch.key_lengths,
            block_tables=batch.block_tables,
            cache=cache,
        )
        hidden = self._compute(hidden, batch.positions, batch.slots, plan, cache, ops)
        return ops.logits(hidden[batch.sampled_rows], self.norm, self.lm_head)

    def decode(
        self, token_ids: Tensor, positions: Tensor, slots: Tensor, plan: Any, cache: KVCache, ops: Ops
    ) -> Tensor:
        """The same for sequences of one new token each, from tensors alone: what is launched depends on their shapes.

        Args:
            token_ids: int64 [sequences]
            positions: int64 [3, sequences]
            slots: int64 [sequences]
            plan: of their attention, as the backend's `plan_attention` makes it.
            cache: as above.
            ops: the backend.

        Returns:
            float32 [sequences, vocab_size]
        """
        hidden = self._compute(self._embed(token_ids), positions, slots, plan, cache, ops)
        return ops.logits(hidden, self.norm, self.lm_head)

    def _compute(self, hidden: Tensor, positions: Tensor, slots: Tensor, plan: Any, cache: KVCache, ops: Ops) -> Tensor:
        """Through all layers: [tokens, hidden_size] → [tokens, hidden_size]"""
        config = self.config
        rotation = multimodal_rotation(
            positions, head_dim=config.head_dim, theta=config.rope_theta, section=config.mrope_section
        )
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, ops, rotation, cache.layer(index), slots, plan)
        return hidden

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint of text alone; parts of fused ones are views.

        For a model whose weights are still in the checkpoint's form.
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
            return self.lm_head.rows(token_ids)
        return functional.embedding(token_ids, self.embed_tokens)


def text_positions(first: int, num_tokens: int) -> npt.NDArray[np.int64]:
    """[3, num_tokens]: one after the other from `first` on, the same in time, height and width."""
    return np.tile(np.arange(first, first + num_tokens, dtype=np.int64), (3, 1))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after an RMSNorm."""

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
        query = ops.rotate_and_store(qkv, rotation, cache, slots)
        attended = ops.attend(query, cache, plan)  # [tokens, heads, head_dim]
        hidden = ops.linear_add(attended.flatten(1), self.self_attn.o_proj, hidden)
        return ops.norm_mlp_add(hidden, self.post_attention_layernorm, self.mlp)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint, less the layer's prefix."""
        yield "input_layernorm.weight", self.input_layernorm.weight.data
        yield from self.self_attn.qkv_proj.named_weights("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield from self.self_attn.o_proj.named_weights("self_attn.o_proj")
        yield "post_attention_layernorm.weight", self.post_attention_layernorm.weight.data
        yield from ((f"mlp.{name}", tensor) for name, tensor in self.mlp.named_weights())


class Attention(nn.Module):
    """The weights of grouped-query attention (arXiv 2305.13245)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        head_dim = config.head_dim
        widths = [heads * head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        self.qkv_proj = Linear(config.hidden_size, widths, bias=True)
        self.o_proj = Linear(widths[0], config.hidden_size, bias=False)
