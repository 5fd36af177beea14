"""Audio encoder of Gemma 4: from log-mel features to the embeddings of placeholder tokens.

Numerics follow `Gemma4AudioModel` of transformers (models/gemma4/modeling_gemma4.py), whose attention in chunks with
masks is computed in windows here.
"""

from collections.abc import Iterator, Sequence
from math import e, log

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import Gemma4AudioConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import weights_of_layers
from glimpse.engine.worker.models.encoders.encoder import Encoder, upload_features
from glimpse.engine.worker.models.encoders.gemma4_vision import ClippedLinear, unscaled_norm

AUDIO_TOWER = "audio_tower."
_LONGEST_WAVELENGTH = 10_000.0


class Gemma4AudioTower(Encoder):
    """Two convolutions, which make a position of four mel frames, and layers of attention and convolution."""

    def __init__(self, config: Gemma4AudioConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        first, second = config.channels
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*sizes, kernel_size=3, stride=2, padding=1, bias=False) for sizes in ((1, first), (first, second))
        )
        self.norms = nn.ParameterList(empty_parameter(size) for size in config.channels)
        self.input = Linear(config.num_mel_bins // 4 * second, config.width, bias=False)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.num_layers))
        self.output = Linear(config.width, config.output_width, bias=True)
        self.projection = Linear(config.output_width, hidden_size, bias=False)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:  # noqa: ARG002
        """See `Encoder.encode`.

        Args:
            media: audio inputs, with features, float32 [mel bins, frames], and grids (1, mel bins, frames).
            ops: backend.
        """
        return [self._encode(upload_features(medium, self.norms[0])) for medium in media]

    def _encode(self, spectrum: Tensor) -> Tensor:
        """[mel bins, frames] → [⌈frames / 4⌉, hidden_size of the decoder]"""
        hidden = spectrum.T[None, None]  # [1, channels, time, frequency]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            hidden = convolution(hidden).movedim(1, -1)
            hidden = functional.layer_norm(hidden, norm.shape, norm, eps=self.config.norm_eps)
            hidden = functional.relu(hidden).movedim(-1, 1)
        hidden = self.input(hidden[0].transpose(0, 1).transpose(1, 2).flatten(1))
        distances = _distances(self.config, hidden)
        for layer in self.layers:
            hidden = layer(hidden, distances)
        return self.projection(unscaled_norm(self.output(hidden), self.config.norm_eps))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        prefix = f"{AUDIO_TOWER}subsample_conv_projection."
        for index, convolution in enumerate(self.convolutions):
            assert isinstance(convolution, nn.Conv2d)
            yield f"{prefix}layer{index}.conv.weight", convolution.weight.data
            yield f"{prefix}layer{index}.norm.weight", self.norms[index].data
        yield from self.input.named_weights(f"{prefix}input_proj_linear")
        yield from weights_of_layers(f"{AUDIO_TOWER}layers.", self.layers)
        yield from self.output.named_weights(f"{AUDIO_TOWER}output_proj")
        yield from self.projection.named_weights("embed_audio.embedding_projection")


class AudioLayer(nn.Module):
    """Half an MLP, attention, a convolution, and half an MLP (arXiv 2005.08100, figure 1)."""

    def __init__(self, config: Gemma4AudioConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.norms = nn.ModuleDict({name.replace(".", "_"): RMSNorm(width, eps=config.norm_eps) for name in _NORMS})
        sizes = {
            **dict.fromkeys(
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.post"), (width, width)
            ),
            "lconv1d.linear_start": (width, 2 * width),
            "lconv1d.linear_end": (width, width),
        }
        for block in ("feed_forward1", "feed_forward2"):
            sizes |= {f"{block}.ffw_layer_1": (width, 4 * width), f"{block}.ffw_layer_2": (4 * width, width)}
        self.names = tuple(sizes)
        self.linears = nn.ModuleDict(
            {name.replace(".", "_"): ClippedLinear(*size, clipped=config.clipped) for name, size in sizes.items()}
        )
        self.distance = Linear(width, width, bias=False)
        self.dim_factors = empty_parameter(width // config.num_heads)
        self.kernel = empty_parameter(width, 1, config.kernel_size)

    def forward(self, hidden: Tensor, distances: Tensor) -> Tensor:
        """[positions, width] → [positions, width]

        Args:
            hidden: [positions, width]
            distances: embeddings of the distances from window - 1 down to 0, [window, width].
        """
        hidden = self._half_mlp(hidden, "feed_forward1")
        attended = self._attend(self._norm(hidden, "norm_pre_attn"), distances)
        hidden = hidden + self._norm(attended, "norm_post_attn")
        hidden = hidden + self._convolve(self._norm(hidden, "lconv1d.pre_layer_norm"))
        hidden = self._half_mlp(hidden, "feed_forward2")
        return self._norm(hidden, "norm_out")

    def _half_mlp(self, hidden: Tensor, block: str) -> Tensor:
        inner = functional.silu(self._linear(self._norm(hidden, f"{block}.pre_layer_norm"), f"{block}.ffw_layer_1"))
        outer = self._norm(self._linear(inner, f"{block}.ffw_layer_2"), f"{block}.post_layer_norm")
        return hidden + outer * self.config.residual_factor

    def _attend(self, x: Tensor, distances: Tensor) -> Tensor:
        """Attends to a window of earlier positions, in float32. Scores depend on distances too (arXiv 1901.02860)."""
        heads, window, cap = self.config.num_heads, self.config.window, self.config.logit_cap
        query, key, value = (
            self._linear(x, f"self_attn.{name}_proj").float().unflatten(1, (heads, -1)) for name in "qkv"
        )
        query = query * (query.shape[-1] ** -0.5 / log(2)) * functional.softplus(self.dim_factors)
        key, value = (  # [positions, heads, head_dim, window]
            functional.pad(each, (0, 0, 0, 0, window - 1, 0)).unfold(0, window, 1)
            for each in (key * (log(1 + e) / log(2)), value)
        )
        relative = self.distance(distances).float().unflatten(1, (heads, -1))
        scores = torch.einsum("phd,phdw->phw", query, key) + torch.einsum("phd,whd->phw", query, relative)
        places = torch.arange(len(x), device=x.device)[:, None] + torch.arange(1 - window, 1, device=x.device)
        scores = (cap * torch.tanh(scores / cap)).masked_fill((places < 0)[:, None], -torch.inf)
        attended = torch.einsum("phw,phdw->phd", scores.softmax(dim=-1), value)
        return self._linear(attended.flatten(1).to(x.dtype), "self_attn.post")

    def _convolve(self, x: Tensor) -> Tensor:
        """Mixes each channel over a few positions, the last of which is the position itself."""
        gated = functional.glu(self._linear(x, "lconv1d.linear_start"), dim=-1)
        padded = functional.pad(gated.T, (self.config.kernel_size - 1, 0))
        mixed = functional.conv1d(padded, self.kernel, groups=len(padded)).T
        return self._linear(functional.silu(self._norm(mixed, "lconv1d.conv_norm")), "lconv1d.linear_end")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.norms[name.replace(".", "_")](x)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self.linears[name.replace(".", "_")](x)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the layer's prefix."""
        for name, norm in zip(_NORMS, self.norms.values(), strict=True):
            assert isinstance(norm, RMSNorm)
            yield f"{name}.weight", norm.weight.data
        for name, linear in zip(self.names, self.linears.values(), strict=True):
            assert isinstance(linear, ClippedLinear)
            yield from linear.named_weights(name)
        yield from self.distance.named_weights("self_attn.relative_k_proj")
        yield "self_attn.per_dim_scale", self.dim_factors.data
        yield "lconv1d.depthwise_conv1d.weight", self.kernel.data


_NORMS = (
    "feed_forward1.pre_layer_norm",
    "feed_forward1.post_layer_norm",
    "norm_pre_attn",
    "norm_post_attn",
    "lconv1d.pre_layer_norm",
    "lconv1d.conv_norm",
    "feed_forward2.pre_layer_norm",
    "feed_forward2.post_layer_norm",
    "norm_out",
)


def _distances(config: Gemma4AudioConfig, like: Tensor) -> Tensor:
    """Returns sines and cosines of the distances from window - 1 down to 0, [window, width]."""
    count = config.width // 2
    steps = torch.arange(count, device=like.device) * -(log(_LONGEST_WAVELENGTH) / max(count - 1, 1))
    angles = torch.arange(config.window - 1, -1, -1, device=like.device)[:, None] * torch.exp(steps)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).to(like.dtype)
