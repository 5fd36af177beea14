"""Rounds matrices to the blocks of GGUF files; `gguf_weights` reads them.

A weight is value · scale - minimum. Scales and minima of a group are those of least weighted squares for the values
that some range gives; of several ranges the one counts that loses least. In K-quants the scales of a block are integers
times a factor: their neighbours are tried too, and values are rounded to what is stored. So each group loses at most
what rounding to the nearest values of its own range does, but for the rounding of scales.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from glimpse.engine.worker.layers.linear import by_rows
from glimpse.engine.worker.loading.gguf_weights import dequantize
from glimpse.engine.worker.quantize.rounding import DAMPING, SHRINKS, Factor, Method, compensate

_SIX_BITS = 63


class _Format(NamedTuple):
    """How blocks of a type hold values."""

    bits: int
    group_size: int
    num_groups: int
    """Groups of a block."""
    has_minima: bool = False
    """Else values have a zero point in the middle."""

    @property
    def zero(self) -> int:
        return 1 << self.bits - 1

    @property
    def top(self) -> int:
        return (1 << self.bits) - 1


_FORMATS: Mapping[str, _Format] = {
    "Q4_K": _Format(4, 32, 8, has_minima=True),
    "Q5_K": _Format(5, 32, 8, has_minima=True),
    "Q6_K": _Format(6, 16, 16),
    "Q5_0": _Format(5, 32, 1),
    "Q5_1": _Format(5, 32, 1, has_minima=True),
    "Q8_0": _Format(8, 32, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A matrix as a GGUF file stores it."""

    kind: str
    octets: Tensor
    """uint8 [out, bytes of a row]"""

    @property
    def weight(self) -> Tensor:
        """float32 [out, in]: what the blocks stand for."""
        if self.kind == "F16":
            return self.octets.view(torch.float16).float()
        return dequantize(self.kind, self.octets)


class _Grid(NamedTuple):
    """What values of groups stand for, and the bytes that say so."""

    scale: Tensor
    """float32 [rows, groups]"""
    minima: Tensor
    """float32 [rows, groups]"""
    factors: Tensor
    """uint8 [rows, blocks, bytes]: d, and with minima dmin; float16."""
    scales: Tensor
    """uint8 [rows, blocks, bytes]: the integers of scales and minima; without bytes if each group is a block."""


def round_blocks(kind: str, weight: Tensor, importance: Tensor | None, factor: Factor | None, method: Method) -> Blocks:
    """Rounds a matrix.

    Args:
        weight: float32 [out, in]
        importance: of each input, [in]; None: of all the same.
        factor: makes up for what columns lose; None: nothing does.
    """
    if kind == "F16":
        return Blocks(kind=kind, octets=weight.half().view(torch.uint8))
    form = _FORMATS[kind]
    own = None
    if importance is not None:
        own = (importance + DAMPING * importance.mean()).unflatten(0, (-1, form.group_size))
    fit = partial(_fit, form, importance=own, is_searched=method != "nearest" and form.bits < 8)
    *found, values = by_rows(weight, fit)
    grid = _Grid(*found)
    if factor is not None and method == "compensated":
        values = compensate(weight, factor, grid.scale, grid.minima, form.top)
    return Blocks(kind=kind, octets=_pack(kind, values, grid))


def _nearest(x: Tensor, scale: Tensor, minima: Tensor, top: int) -> Tensor:
    """Returns the values nearest to weights: [..., group_size], of groups whose scales and minima are [...]."""
    divisor = torch.where(scale != 0, scale, 1.0)
    return (x + minima[..., None]).div_(divisor[..., None]).round_().clamp_(0, top)


def _loss(x: Tensor, weights: Tensor, scale: Tensor, minima: Tensor, top: int) -> Tensor:
    values = _nearest(x, scale, minima, top)
    return values.mul_(scale[..., None]).sub_(minima[..., None]).sub_(x).square_().mul_(weights).sum(dim=-1)


def _fit(form: _Format, rows: Tensor, *, importance: Tensor | None, is_searched: bool) -> tuple[Tensor, ...]:
    """Returns the grids of rows, and the values nearest to them, uint8 [rows, inputs]."""
    x = rows.unflatten(1, (-1, form.group_size))  # [rows, groups, group_size]
    weights = (torch.ones(()) if importance is None else importance).expand(x.shape[1:])
    if form.has_minima:
        ranges = _fit_minima(x, weights, form.top, is_searched=is_searched)
        grid = _minima_grid(form, x, weights, *ranges, is_searched=is_searched)
    else:
        scale = _fit_middle(x, weights, form, is_searched=is_searched)
        grid = _middle_grid(form, x, weights, scale, is_searched=is_searched)
    return (*grid, _nearest(x, grid.scale, grid.minima, form.top).to(torch.uint8).flatten(1))


def _fit_minima(x: Tensor, weights: Tensor, top: int, *, is_searched: bool) -> tuple[Tensor, Tensor]:
    low, high = x.amin(dim=-1).clamp_(max=0), x.amax(dim=-1)
    scale, minima = (high - low) / top, -low
    if not is_searched:
        return scale, minima
    best: tuple[Tensor, ...] = scale, minima, _loss(x, weights, scale, minima, top)
    sum_w, sum_x = weights.sum(dim=-1), (x * weights).sum(dim=-1)
    for shrink in (1.0, *SHRINKS):
        values = _nearest(x, scale * shrink, minima * shrink, top)
        weighted = values * weights
        sum_v, sum_vv, sum_vx = weighted.sum(dim=-1), (weighted * values).sum(dim=-1), (weighted * x).sum(dim=-1)
        determinant = sum_w * sum_vv - sum_v.square()
        slope = (sum_w * sum_vx - sum_v * sum_x) / determinant
        below = (sum_v * sum_vx - sum_vv * sum_x) / determinant
        is_free = (determinant > 0) & (below > 0) & (slope > 0)
        through_zero = torch.where(sum_vv > 0, sum_vx / sum_vv, 0.0).clamp_(min=0)
        found = torch.where(is_free, slope, through_zero), torch.where(is_free, below, 0.0)
        best = _better(best, (*found, _loss(x, weights, *found, top)))
    return best[0], best[1]


def _fit_middle(x: Tensor, weights: Tensor, form: _Format, *, is_searched: bool) -> Tensor:
    largest = x.gather(-1, x.abs().argmax(dim=-1, keepdim=True)).squeeze(-1)
    # Of 8 bits the scale is positive, as other programs write it; else the largest weight is one of the grid.
    scale = largest.abs() / (form.zero - 1) if form.bits == 8 else largest / -form.zero
    if not is_searched:
        return scale
    best: tuple[Tensor, ...] = scale, _loss(x, weights, scale, scale * form.zero, form.top)
    for shrink in (1.0, *SHRINKS):
        tried = scale * shrink
        values = _nearest(x, tried, tried * form.zero, form.top).sub_(form.zero)
        weighted = values * weights
        squares = (weighted * values).sum(dim=-1)
        found = torch.where(squares > 0, (weighted * x).sum(dim=-1) / squares, 0.0)
        best = _better(best, (found, _loss(x, weights, found, found * form.zero, form.top)))
    return best[0]


def _better(best: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns of each group what loses least; the losses are last."""
    is_better = other[-1] < best[-1]
    return tuple(torch.where(is_better, new, old) for new, old in zip(other, best, strict=True))


def _octets(halves: Tensor) -> Tensor:
    """float16 [..., n] → uint8 [..., 2n]"""
    return halves.contiguous().view(torch.uint8)


def _minima_grid(
    form: _Format, x: Tensor, weights: Tensor, scale: Tensor, minima: Tensor, *, is_searched: bool
) -> _Grid:
    parts = [each.unflatten(1, (-1, form.num_groups)) for each in (scale, minima)]  # [rows, blocks, groups]
    if form.num_groups == 1:
        factors = torch.cat([parts[0], -parts[1]], dim=-1).half()
        scale, lows = factors.float().unbind(dim=-1)
        return _Grid(scale, -lows, _octets(factors), factors.new_empty((*scale.shape, 0)).byte())
    factors = [(each.amax(dim=-1, keepdim=True) / _SIX_BITS).half() for each in parts]
    wide = [each.float().expand_as(part).flatten(1) for each, part in zip(factors, parts, strict=True)]
    integers = [
        (each / torch.where(factor > 0, factor, 1.0)).round_().clamp_(0, _SIX_BITS)
        for each, factor in zip((scale, minima), wide, strict=True)
    ]

    def tried(*steps: int) -> tuple[Tensor, ...]:
        own = [(each + step).clamp_(0, _SIX_BITS) for each, step in zip(integers, steps, strict=True)]
        return (*own, _loss(x, weights, own[0] * wide[0], own[1] * wide[1], form.top))

    best = tried(0, 0)
    for steps in product((-1, 0, 1), repeat=2) if is_searched else ():
        best = _better(best, tried(*steps))
    scales, lows = (each.to(torch.uint8).unflatten(1, (-1, form.num_groups)) for each in best[:2])
    half = form.num_groups // 2
    packed = [
        scales[..., :half] | scales[..., half:] >> 4 << 6,
        lows[..., :half] | lows[..., half:] >> 4 << 6,
        scales[..., half:] & 15 | (lows[..., half:] & 15) << 4,
    ]
    return _Grid(best[0] * wide[0], best[1] * wide[1], _octets(torch.cat(factors, dim=-1)), torch.cat(packed, dim=-1))


def _middle_grid(form: _Format, x: Tensor, weights: Tensor, scale: Tensor, *, is_searched: bool) -> _Grid:
    blocks = scale.unflatten(1, (-1, form.num_groups))
    if form.num_groups == 1:
        factors = blocks.half()
        rounded = factors.float().flatten(1)
        return _Grid(rounded, rounded * form.zero, _octets(factors), factors.new_empty((*blocks.shape[:2], 0)).byte())
    largest = blocks.gather(-1, blocks.abs().argmax(dim=-1, keepdim=True))
    factors = (largest / -128).half()
    wide = factors.float().expand_as(blocks).flatten(1)
    integers = (scale / torch.where(wide != 0, wide, 1.0)).round_().clamp_(-128, 127)

    def tried(step: int) -> tuple[Tensor, Tensor]:
        own = (integers + step).clamp_(-128, 127)
        return own, _loss(x, weights, own * wide, own * wide * form.zero, form.top)

    best: tuple[Tensor, ...] = tried(0)
    for step in (-1, 1) if is_searched else ():
        best = _better(best, tried(step))
    packed = best[0].to(torch.int8).view(torch.uint8).unflatten(1, (-1, form.num_groups))
    return _Grid(best[0] * wide, best[0] * wide * form.zero, _octets(factors), packed)


def _pack(kind: str, values: Tensor, grid: _Grid) -> Tensor:
    """Returns uint8 [rows, bytes] of values, uint8 [rows, inputs]."""
    form = _FORMATS[kind]
    blocks = values.view(-1, form.num_groups * form.group_size)
    factors, scales = grid.factors.flatten(0, 1), grid.scales.flatten(0, 1)
    match kind:
        case "Q4_K":
            parts = [factors, scales, _nibbles(blocks.view(-1, 4, 64))]
        case "Q5_K":
            fifth = _bits(blocks.view(-1, 8, 32) >> 4, 1)
            parts = [factors, scales, fifth, _nibbles(blocks.view(-1, 4, 64))]
        case "Q6_K":
            high = _bits(blocks.view(-1, 2, 4, 32) >> 4, 2)
            parts = [_nibbles(blocks.view(-1, 2, 128)), high.flatten(1), scales, factors]
        case "Q5_0" | "Q5_1":
            fifth = _bits((blocks.view(-1, 4, 8) >> 4).mT, 1)
            parts = [factors, fifth, _nibbles(blocks)]
        case _:
            parts = [factors, blocks ^ 128]
    return torch.cat([each.flatten(1) for each in parts], dim=1).view(len(values), -1)


def _nibbles(values: Tensor) -> Tensor:
    """[…, 2n] → […, n]: the low four bits of the first half, and those of the second above them."""
    low, high = (values & 15).chunk(2, dim=-1)
    return low | high << 4


def _bits(values: Tensor, width: int) -> Tensor:
    """[…, m, n] → […, n]: `width` bits of each of m values in one byte, the first one's lowest."""
    parts = values.unbind(dim=-2)
    packed = parts[0].clone()
    for index, part in enumerate(parts[1:], start=1):
        packed |= part << index * width
    return packed
