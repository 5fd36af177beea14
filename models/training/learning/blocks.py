"""The arithmetic around matrix products, as functions that a compiler can fuse.

`Compute` holds these functions or their compiled versions, and the dtype of activations. Functions take weights as
arguments, so that all layers share one compiled version.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How the network computes."""

    dtype: torch.dtype
    """Dtype of activations, and of weights when used."""
    vision_project: Callable[..., tuple[Tensor, Tensor, Tensor]]
    vision_finish: Callable[..., Tensor]
    merge: Callable[..., Tensor]
    text_project: Callable[..., tuple[Tensor, Tensor, Tensor]]
    text_finish: Callable[..., Tensor]
    softmax: Callable[[Tensor, float, Tensor], Tensor]
    causal_softmax: Callable[[Tensor, float], Tensor]
    logits: Callable[..., Tensor]


def make_compute(dtype: torch.dtype, *, compiled: bool) -> Compute:
    """Returns plain functions, or compiled ones, which takes a C++ compiler and a minute."""

    def form(function: Any) -> Any:
        return torch.compile(function, dynamic=True) if compiled else function

    return Compute(
        dtype=dtype,
        vision_project=form(vision_project),
        vision_finish=form(vision_finish),
        merge=form(merge),
        text_project=form(text_project),
        text_finish=form(text_finish),
        softmax=form(softmax),
        causal_softmax=form(causal_softmax),
        logits=form(logits),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of packed rows for attention: segments padded to a few lengths, so that products are few."""

    groups: tuple[tuple[int, int], ...]
    """(segments, rows of a segment)"""
    rows: Tensor
    """int64 [laid-out rows], group by group: the packed row, or their number for padding."""
    places: Tensor
    """int64 [packed rows]: the index among the laid-out rows, or their number outside of segments."""


def attend(query: Tensor, key: Tensor, value: Tensor, layout: Layout, compute: Compute, *, causal: bool) -> Tensor:
    """Computes attention within each segment.

    Args:
        query: [rows, heads, head_dim]
        key: [rows, kv_heads, head_dim]; consecutive heads share one.
        value: likewise.
        layout: the layout; rows outside of segments attend to nothing.
        compute: how.
        causal: a row attends to itself and earlier rows.

    Returns:
        [rows, heads · head_dim]
    """
    num_rows, num_kv_heads, head_dim = key.shape
    sizes = [runs * length for runs, length in layout.groups]
    laid_out = (_pick(tensor, layout.rows, layout.places).split(sizes) for tensor in (query, key, value))
    filling = (layout.rows == num_rows).split(sizes)
    outputs: list[Tensor] = []
    for (runs, length), group_query, group_key, group_value, fills in zip(
        layout.groups, *laid_out, filling, strict=True
    ):
        # [runs, kv_heads, sharing heads, length, head_dim]; keys and values are the same for all that share them.
        queries = group_query.view(runs, length, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        keys = group_key.view(runs, length, num_kv_heads, head_dim).transpose(1, 2)
        values = group_value.view(runs, length, num_kv_heads, head_dim).transpose(1, 2)
        sharing = queries.shape[2]
        scores = queries.reshape(-1, sharing * length, head_dim) @ keys.reshape(-1, length, head_dim).transpose(1, 2)
        if causal:  # what only fills up comes last
            weights = compute.causal_softmax(scores.view(-1, length, length), head_dim**-0.5)
        else:
            weights = compute.softmax(scores.view(runs, -1, length), head_dim**-0.5, fills.view(runs, 1, length))
        attended = weights.view(-1, sharing * length, length) @ values.reshape(-1, length, head_dim)
        attended = attended.view(runs, num_kv_heads, sharing, length, head_dim).permute(0, 3, 1, 2, 4)
        outputs.append(attended.reshape(runs * length, -1))
    if not outputs:
        return query.flatten(1) * 0
    return _pick(torch.cat(outputs), layout.places, layout.rows)


def softmax(scores: Tensor, scale: float, left_out: Tensor) -> Tensor:
    """[…, queries, keys]: of all keys but some."""
    # A padding segment has only padding: its weights are unused but must be finite.
    return (scores.float() * scale).masked_fill(left_out, -1e9).softmax(-1).to(scores.dtype)


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """[…, queries, keys]: of the keys up to the query."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    hidden = places[None, :] > places[:, None]
    return (scores.float() * scale).masked_fill(hidden, float("-inf")).softmax(-1).to(scores.dtype)


class _Pick(torch.autograd.Function):
    """Rows by their numbers, where each is taken once: the gradient picks them back, rather than adding them up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, wanted: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(wanted, back)
        return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]).index_select(0, wanted)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, back = ctx.saved_tensors
        return torch.cat([gradient, gradient.new_zeros(1, *gradient.shape[1:])]).index_select(0, back), None, None


def _pick(rows: Tensor, wanted: Tensor, back: Tensor) -> Tensor:
    """`rows[wanted]`, zeros where a number is that of no row; `back` are the places of the rows in the result."""
    picked: Any = _Pick.apply(rows, wanted, back)
    return picked


def vision_project(
    hidden: Tensor, cos: Tensor, sin: Tensor, norm: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [patches, heads, head_dim] each."""
    x = functional.layer_norm(hidden.float(), norm.shape, norm, norm_bias, EPS).to(hidden.dtype)
    query, key, value = _linear(x, weight, bias).unflatten(-1, (3, heads, -1)).unbind(1)
    return _rotate(query, cos, sin), _rotate(key, cos, sin), value


def vision_finish(
    hidden: Tensor,
    attended: Tensor,
    proj: Tensor,
    proj_bias: Tensor,
    norm: Tensor,
    norm_bias: Tensor,
    fc1: Tensor,
    fc1_bias: Tensor,
    fc2: Tensor,
    fc2_bias: Tensor,
) -> Tensor:
    """[patches, width]: what attention and feed-forward add."""
    hidden = hidden + _linear(attended, proj, proj_bias)
    x = functional.layer_norm(hidden.float(), norm.shape, norm, norm_bias, EPS).to(hidden.dtype)
    inner = _linear(x, fc1, fc1_bias)
    return hidden + _linear(inner * torch.sigmoid(1.702 * inner), fc2, fc2_bias)


def merge(
    hidden: Tensor, norm: Tensor, norm_bias: Tensor, fc1: Tensor, fc1_bias: Tensor, fc2: Tensor, fc2_bias: Tensor
) -> Tensor:
    """[patches, width] → [patches / 4, hidden_size]"""
    x = functional.layer_norm(hidden.float(), norm.shape, norm, norm_bias, EPS).to(hidden.dtype)
    inner = functional.gelu(_linear(x.view(-1, fc1.shape[1]), fc1, fc1_bias))
    return _linear(inner, fc2, fc2_bias)


def text_project(
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: Tensor,
    query: Tensor,
    query_bias: Tensor,
    key: Tensor,
    key_bias: Tensor,
    value: Tensor,
    value_bias: Tensor,
    heads: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [tokens, heads or kv_heads, head_dim] each."""
    weight, bias = torch.cat([query, key, value]), torch.cat([query_bias, key_bias, value_bias])
    qkv = _linear(_rms_norm(hidden, norm), weight, bias).unflatten(-1, (heads + 2 * kv_heads, -1))
    queries, keys, values = qkv.split([heads, kv_heads, kv_heads], dim=1)
    return _rotate(queries, cos, sin), _rotate(keys, cos, sin), values


def text_finish(
    hidden: Tensor, attended: Tensor, output: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """[tokens, hidden_size]: what attention and feed-forward add."""
    hidden = hidden + _linear(attended, output)
    gated, plain = _linear(_rms_norm(hidden, norm), torch.cat([gate, up])).chunk(2, dim=-1)
    return hidden + _linear(functional.silu(gated) * plain, down)


def logits(hidden: Tensor, norm: Tensor, table: Tensor) -> Tensor:
    """float32 [answers, vocab_size]"""
    return _linear(_rms_norm(hidden, norm), table).float()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _rms_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    wide = hidden.float()
    normal = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS)
    return (normal * weight).to(hidden.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
