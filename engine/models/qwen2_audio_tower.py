"""Qwen2-Audio's encoder: Whisper's encoder (arXiv 2212.04356), average pooling of two positions, and a projection.

Positions of padding after the audio, which the reference implementation masks, are not computed here.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.layers.linear import Linear
from glimpse.engine.layers.ops import Ops
from glimpse.engine.model_config import AudioConfig


class AudioTower(nn.Module):
    """Encodes one audio input at a time."""

    def __init__(self, config: AudioConfig, hidden_size: int) -> None:
        super().__init__()
        width = config.width
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = nn.Parameter(torch.empty(config.max_positions, width), requires_grad=False)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.num_layers))
        self.layer_norm = nn.LayerNorm(width)
        self.projector = Linear(width, hidden_size, bias=True)

    def forward(self, features: memoryview, shape: tuple[int, int], ops: Ops) -> Tensor:
        """Encodes an audio input.

        Args:
            features: float32, row-major, of shape `shape`.
            shape: mel bins and frames. Two frames become one position of the encoder; an odd last frame only
                contributes to the convolution at the last position.
            ops: backend.

        Returns:
            [frames // 4, hidden_size of the decoder]
        """
        values = torch.from_numpy(np.frombuffer(features, dtype=np.float32).reshape(shape).copy())
        spectrum = values.to(self.conv1.weight.device, self.conv1.weight.dtype)  # [mel bins, frames]
        waves = functional.gelu(self.conv1(spectrum))
        waves = functional.gelu(self.conv2(waves))[:, : shape[1] // 2]  # [width, positions]
        hidden = waves.T.contiguous() + self.embed_positions[: shape[1] // 2]
        for layer in self.layers:
            hidden = layer(hidden, ops)
        pairs = hidden[: shape[1] // 4 * 2].unflatten(0, (-1, 2))  # [tokens, 2, width]
        return self.projector(self.layer_norm(pairs.mean(dim=1)))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; matrices of fused linears are views."""
        for name, parameter in self.named_parameters():
            if not name.startswith(("layers.", "projector.", "embed_positions")):
                yield f"audio_tower.{name}", parameter.data
        yield "audio_tower.embed_positions.weight", self.embed_positions.data
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, AudioLayer)
            yield from ((f"audio_tower.layers.{index}.{name}", tensor) for name, tensor in layer.named_weights())
        yield from self.projector.named_weights("multi_modal_projector.linear")


class AudioLayer(nn.Module):
    """Bidirectional attention and feed-forward, each preceded by a LayerNorm."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.qv_proj = Linear(width, (width, width), bias=True)
        self.k_proj = Linear(width, width, bias=False)
        self.out_proj = Linear(width, width, bias=True)
        self.final_layer_norm = nn.LayerNorm(width)
        self.fc1 = Linear(width, config.intermediate_size, bias=True)
        self.fc2 = Linear(config.intermediate_size, width, bias=True)

    def forward(self, hidden: Tensor, ops: Ops) -> Tensor:
        """[positions, width] → [positions, width]"""
        query, value = ops.norm_linear(hidden, self.self_attn_layer_norm, self.qv_proj).chunk(2, dim=-1)
        key = ops.norm_linear(hidden, self.self_attn_layer_norm, self.k_proj)
        query, key, value = (  # [heads, positions, head_dim]
            part.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for part in (query, key, value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        hidden = ops.linear_add(attended.transpose(0, 1).flatten(1), self.out_proj, hidden)
        inner = functional.gelu(ops.norm_linear(hidden, self.final_layer_norm, self.fc1))
        return ops.linear_add(inner, self.fc2, hidden)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            yield from ((f"{norm}.{name}", each.data) for name, each in self.get_submodule(norm).named_parameters())
        yield from self.qv_proj.named_weights("self_attn.q_proj", "self_attn.v_proj")
        yield from self.k_proj.named_weights("self_attn.k_proj")
        yield from self.out_proj.named_weights("self_attn.out_proj")
        yield from self.fc1.named_weights("fc1")
        yield from self.fc2.named_weights("fc2")
