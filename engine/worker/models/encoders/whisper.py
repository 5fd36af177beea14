"""Whisper's encoder (arXiv 2212.04356), without its last norm, which families apply at different places.

Positions of padding after the audio, which the reference implementation masks, are computed only where a family needs
them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import AudioConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import named_tensors, weights_of_layers
from glimpse.engine.worker.models.encoders.encoder import Encoder, upload_features
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP

_PREFIX = "audio_tower."


class WhisperEncoder(Encoder):
    """Convolutions, which make a position of two mel frames, and layers of attention. Subclasses make rows of them."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.width
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = empty_parameter(config.max_positions, width)
        self.layers = nn.ModuleList(WhisperLayer(config) for _ in range(config.num_layers))
        self.layer_norm = nn.LayerNorm(width)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """See `Encoder.encode`.

        Args:
            media: audio inputs, with features, float32 [mel bins, frames], and grids (1, mel bins, frames).
        """
        return [self.encode_audio(upload_features(medium, self.conv1.weight), ops) for medium in media]

    @abstractmethod
    def encode_audio(self, spectrum: Tensor, ops: Ops) -> Tensor:
        """Returns the rows of an audio input, [mel bins, frames], in the type of the weights."""

    def forward(self, spectrum: Tensor, num_positions: int, num_keys: int, ops: Ops) -> Tensor:
        """Encodes a spectrogram; `layer_norm` is left to the caller.

        Args:
            spectrum: [mel bins, frames]. A further last frame only contributes to the convolution at the last position.
            num_keys: positions of audio, the first ones. The others are padding, to which none attends.

        Returns:
            [num_positions, width]
        """
        waves = functional.gelu(self.conv1(spectrum))
        waves = functional.gelu(self.conv2(waves))[:, :num_positions]  # [width, positions]
        hidden = waves.T.contiguous() + self.embed_positions[:num_positions]
        for layer in self.layers:
            hidden = layer(hidden, num_keys, ops)
        return hidden

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields Whisper's weights with their checkpoint names; matrices of fused linears are views."""
        for name in ("conv1", "conv2", "layer_norm"):
            yield from named_tensors(self.get_submodule(name), f"{_PREFIX}{name}")
        yield f"{_PREFIX}embed_positions.weight", self.embed_positions.data
        yield from weights_of_layers(f"{_PREFIX}layers.", self.layers)


class WhisperLayer(nn.Module):
    """Bidirectional attention and feed-forward, each preceded by a LayerNorm."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads = config.num_heads
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.qv_proj = Linear(width, (width, width), bias=True)
        self.k_proj = Linear(width, width, bias=False)
        self.out_proj = Linear(width, width, bias=True)
        self.mlp = GeluMLP(width, config.intermediate_size, width, norm=nn.LayerNorm(width))

    def forward(self, hidden: Tensor, num_keys: int, ops: Ops) -> Tensor:
        """[positions, width] → [positions, width]. Attention is to the first `num_keys` positions."""
        query, value = ops.norm_linear(hidden, self.self_attn_layer_norm, self.qv_proj).chunk(2, dim=-1)
        key = ops.norm_linear(hidden, self.self_attn_layer_norm, self.k_proj)
        query, key, value = (  # [heads, positions, head_dim]
            part.unflatten(-1, (self.num_heads, -1)).transpose(0, 1) for part in (query, key, value)
        )
        attended = functional.scaled_dot_product_attention(query, key[:, :num_keys], value[:, :num_keys])
        hidden = ops.linear_add(attended.transpose(0, 1).flatten(1), self.out_proj, hidden)
        return self.mlp(hidden, ops, hidden)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        yield from named_tensors(self.self_attn_layer_norm, "self_attn_layer_norm")
        yield from self.qv_proj.named_weights("self_attn.q_proj", "self_attn.v_proj")
        yield from self.k_proj.named_weights("self_attn.k_proj")
        yield from self.out_proj.named_weights("self_attn.out_proj")
        yield from self.mlp.named_weights(norm="final_layer_norm", linears=("fc1", "fc2"))
