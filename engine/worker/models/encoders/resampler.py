"""A perceiver resampler (arXiv 2204.14198): learned queries attend once to the patches of an image, so that images of
any size become equally many rows.

Numerics follow vLLM's `Resampler2_5` and `Resampler4_5` (model_executor/models/minicpmv.py), the published ones of
MiniCPM-V 2.6, 4.0 and 4.5.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.worker.layers.linear import empty_parameter

NORM_EPS = 1e-6


class Resampler(nn.Module):
    """Attention from learned queries to features of patches, whose keys have sinusoidal positions."""

    def __init__(self, *, num_queries: int, num_heads: int, features: int, width: int) -> None:
        """`features`: width of the patches' features; `width`: that of queries, attention and output."""
        super().__init__()
        self.num_heads = num_heads
        self.query = empty_parameter(num_queries, width)
        # Published checkpoints have it only where the widths differ.
        self.kv_proj = None if features == width else empty_parameter(width, features)
        self.ln_q = nn.LayerNorm(width, eps=NORM_EPS)
        self.ln_kv = nn.LayerNorm(width, eps=NORM_EPS)
        self.ln_post = nn.LayerNorm(width, eps=NORM_EPS)
        self.in_proj_weight = empty_parameter(3 * width, width)  # queries, keys, values
        self.in_proj_bias = empty_parameter(3 * width)
        self.out_proj_weight = empty_parameter(width, width)
        self.out_proj_bias = empty_parameter(width)
        self.proj = empty_parameter(width, width)  # [in, out]

    def forward(self, features: Tensor, size: tuple[int, int], times: Tensor | None = None, packed: int = 1) -> Tensor:
        """Resamples images of equal size, or packs of the frames of a video.

        Args:
            features: [images, patches, features].
            size: rows and columns of patches.
            times: [images], temporal ids of frames; None: they have none.
            packed: frames that become the rows of one image; the last pack may have fewer.

        Returns:
            [⌈images / packed⌉, queries, width]
        """
        values = self.ln_kv(features if self.kv_proj is None else functional.linear(features, self.kv_proj))
        keys = values + position_waves(*size, values.shape[-1], values.device).to(values.dtype)
        if times is not None:
            keys = keys + time_waves(times, values.shape[-1]).to(values.dtype)[:, None]
        num_whole = len(features) // packed * packed
        resampled = [
            self._attend(_in_packs(keys[part], count), _in_packs(values[part], count))
            for part, count in ((slice(num_whole), packed), (slice(num_whole, None), len(features) - num_whole))
            if len(keys[part])
        ]
        return torch.cat(resampled)

    def _attend(self, keys: Tensor, values: Tensor) -> Tensor:
        """[packs, patches, width] twice → [packs, queries, width]"""
        queries = self.ln_q(self.query).expand(len(keys), -1, -1)
        parts = zip((queries, keys, values), self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
        query, key, value = (
            functional.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in parts
        )
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return self.ln_post(functional.linear(attended, self.out_proj_weight, self.out_proj_bias)) @ self.proj

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without a prefix."""
        for name, parameter in self.named_parameters():
            yield _PUBLISHED.get(name, name), parameter.data


_PUBLISHED = {
    "kv_proj": "kv_proj.weight",
    "in_proj_weight": "attn.in_proj_weight",
    "in_proj_bias": "attn.in_proj_bias",
    "out_proj_weight": "attn.out_proj.weight",
    "out_proj_bias": "attn.out_proj.bias",
}
"""Names of parameters → those in checkpoints."""


def _in_packs(patches: Tensor, packed: int) -> Tensor:
    """[images, patches, width] → [images / packed, packed · patches, width]"""
    return patches.reshape(-1, packed * patches.shape[1], patches.shape[2])


def time_waves(times: Tensor, width: int) -> Tensor:
    """[times] → float32 [times, width]: sines, then cosines, of a time times frequencies from 1 to almost 1/10000."""
    half = width // 2
    frequencies = 10_000.0 ** -(torch.arange(half, dtype=torch.float32, device=times.device) / half)
    angles = times[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def position_waves(rows: int, columns: int, width: int, device: torch.device) -> Tensor:
    """Returns float32 [rows · columns, width]: for the column, then for the row, sines, then cosines, of the index
    times frequencies from 1 down to almost 1/10000 (arXiv 1706.03762, section 3.5)."""
    quarter = width // 4
    frequencies = 10_000.0 ** -(torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
    row, column = (
        torch.cat([angles.sin(), angles.cos()], dim=1)
        for angles in (torch.arange(n, device=device)[:, None] * frequencies for n in (rows, columns))
    )
    both = (column.expand(rows, -1, -1), row[:, None].expand(-1, columns, -1))
    return torch.cat(both, dim=2).flatten(0, 1)
