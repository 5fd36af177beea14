"""Qwen2-VL (arXiv 2409.12191): the decoder over packed tokens, and the positions of its prompts.

Numerics follow transformers' `Qwen2VLForConditionalGeneration` (models/qwen2_vl/modeling_qwen2_vl.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.batch import Batch, SequenceLayout
from engine.config import ModelConfig, TextConfig
from engine.kv_cache import KVCache, LayerCache
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.layers.ops import Ops, TorchOps
from engine.layers.rotary import Rotation, multimodal_rotation
from engine.models.qwen2_vl_vision import PixelStatistics, VisionTower
from engine.plan import MediaSpan


class Qwen2VL(nn.Module):
    """The whole model. Its parameters are empty until they are loaded through `stored_tensors`."""

    def __init__(self, config: ModelConfig, statistics: PixelStatistics) -> None:
        super().__init__()
        text = config.text
        self.config = text
        self.ops: Ops = TorchOps()
        """Carries out the layers' operations; replaced together with the form of the weights."""
        self.visual = VisionTower(config.vision, statistics)
        self.lm_head = Linear(text.hidden_size, text.vocab_size, bias=False)
        shape = (text.vocab_size, text.hidden_size)
        # None: the output head's own weights.
        self.embed_tokens = None if text.tie_word_embeddings else nn.Parameter(torch.empty(shape), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(text) for _ in range(text.num_layers))
        self.norm = RMSNorm(text.hidden_size, eps=text.rms_norm_eps)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        """Computes the batch's tokens, writes their keys and values, and scores what follows the sampled rows.

        Args:
            batch: of this step.
            cache: holds all earlier tokens of the batch's sequences.
            encoder_outputs: by key, what `visual` made of every medium that the batch touches.

        Returns:
            float32 [samples, vocab_size]
        """
        config = self.config
        hidden = self._embed(batch, encoder_outputs)  # [tokens, hidden_size]
        rotation = multimodal_rotation(
            batch.positions, head_dim=config.head_dim, theta=config.rope_theta, section=config.mrope_section
        )
        plan = self.ops.plan_attention(
            query_lengths=batch.query_lengths,
            key_lengths=batch.key_lengths,
            block_tables=batch.block_tables,
            cache=cache,
        )
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, self.ops, rotation, cache.layer(index), batch.slots, plan)
        return self.ops.logits(hidden[batch.sampled_rows], self.norm, self.lm_head)

    def encode(self, pixels: memoryview, grid_thw: tuple[int, int, int]) -> Tensor:
        """The rows that stand for a medium's placeholder tokens; see `VisionTower`."""
        return self.visual(pixels, grid_thw, self.ops)

    def stored_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint; parts of fused ones are views.

        For a model whose weights are still in the checkpoint's form.
        """
        embed_tokens = self.lm_head.weight if self.embed_tokens is None else self.embed_tokens
        yield "model.embed_tokens.weight", embed_tokens.data
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            yield from ((f"model.layers.{index}.{name}", tensor) for name, tensor in layer.stored_tensors())
        yield "model.norm.weight", self.norm.weight.data
        if self.embed_tokens is not None:
            yield from self.lm_head.stored_tensors("lm_head")
        yield from ((f"visual.{name}", tensor) for name, tensor in self.visual.stored_tensors())

    def _embed(self, batch: Batch, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        if self.embed_tokens is None:
            hidden = self.lm_head.rows(batch.token_ids)
        else:
            hidden = functional.embedding(batch.token_ids, self.embed_tokens)
        for rows in batch.media:
            encoded = encoder_outputs[rows.key][rows.offset : rows.offset + rows.num_tokens]
            hidden[rows.row : rows.row + rows.num_tokens] = encoded
        return hidden


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

    def stored_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in a published checkpoint, less the layer's prefix."""
        yield "input_layernorm.weight", self.input_layernorm.weight.data
        yield from self.self_attn.qkv_proj.stored_tensors("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield from self.self_attn.o_proj.stored_tensors("self_attn.o_proj")
        yield "post_attention_layernorm.weight", self.post_attention_layernorm.weight.data
        yield from self.mlp.gate_up_proj.stored_tensors("mlp.gate_proj", "mlp.up_proj")
        yield from self.mlp.down_proj.stored_tensors("mlp.down_proj")


class Attention(nn.Module):
    """The weights of grouped-query attention (arXiv 2305.13245)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        head_dim = config.head_dim
        widths = [heads * head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        self.qkv_proj = Linear(config.hidden_size, widths, bias=True)
        self.o_proj = Linear(widths[0], config.hidden_size, bias=False)


def layout_prompt(num_tokens: int, spans: Sequence[MediaSpan], spatial_merge_size: int) -> SequenceLayout:
    """Positions of a prompt on the axes time, height and width (M-RoPE).

    Text advances on all three axes at once. A medium lies on a grid that begins after all that is before it, and what
    follows begins after the grid's largest position. So says the paper, and so did the implementation with which the
    weights were published. (transformers 5 goes on after a clip's height or width alone, so that text after a clip of
    many small frames shares positions with it: trained weights never saw that.)

    Args:
        num_tokens: of the prompt.
        spans: its media, in the order of `start`.
        spatial_merge_size: patches of a side that become one token.
    """
    pieces: list[np.ndarray] = []  # [3, tokens] each
    index = position = 0
    for span in spans:
        pieces.append(_text_positions(position, span.start - index))
        position += span.start - index
        grid_t, grid_h, grid_w = span.grid_thw
        shape = (grid_t, grid_h // spatial_merge_size, grid_w // spatial_merge_size)
        pieces.append(position + np.indices(shape).reshape(3, -1))
        position += max(shape)
        index = span.end
    pieces.append(_text_positions(position, num_tokens - index))
    position += num_tokens - index
    return SequenceLayout(
        prompt_positions=np.concatenate(pieces, axis=1), delta=position - num_tokens, spans=tuple(spans)
    )


def published_name(name: str) -> str:
    """The published name of a checkpoint's tensor that may bear the name it has inside transformers 5."""
    for prefix, published in (("model.language_model.", "model."), ("model.visual.", "visual.")):
        if name.startswith(prefix):
            return published + name.removeprefix(prefix)
    return name


def _text_positions(first: int, num_tokens: int) -> np.ndarray:
    return np.tile(np.arange(first, first + num_tokens), (3, 1))
