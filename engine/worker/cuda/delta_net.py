"""Fused Triton kernels of the recurrent step of gated delta nets, which takes some twenty kernels in torch.

The reference implementation is `update_singles` in `engine/worker/layers/delta_net.py`.
"""
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportGeneralTypeIssues=false
# (kernels are written in Triton's language, whose values have no Python types;
# a launch takes options of its own)

import torch
import triton
import triton.language as tl
from torch import Tensor

from glimpse.engine.worker.layers.delta_net import DeltaNet, SingleTokens
from glimpse.engine.worker.tensors.kv_cache import LayerStates

CHANNELS = 256
"""Channels of the convolution per program."""
VALUES = 32
"""Columns of a state per program: more would not fit into registers."""


def update_singles(projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, group: SingleTokens) -> Tensor:
    """Does what the reference does, for as many tokens; all arguments are on the GPU."""
    sizes, num_tokens = net.sizes, len(projected)
    projected, rates = projected.contiguous(), rates.contiguous()
    convolved = projected.new_empty(num_tokens, sizes.conv_width, dtype=torch.float32)
    heads = projected.new_empty(num_tokens, sizes.num_value_heads, sizes.value_head_dim, dtype=torch.float32)
    output = projected.new_empty(num_tokens, sizes.value_width)
    _convolve[(num_tokens, triton.cdiv(sizes.conv_width, CHANNELS))](
        projected,
        net.conv,
        states.conv,
        group.reads,
        group.writes,
        convolved,
        row_width=projected.shape[1],
        width=sizes.conv_width,
        taps=sizes.conv_size,
        channels=CHANNELS,
    )
    values = min(VALUES, triton.next_power_of_2(sizes.value_head_dim))
    _update[(num_tokens, sizes.num_value_heads, triton.cdiv(sizes.value_head_dim, values))](
        convolved,
        rates,
        net.decay,
        net.decay_bias,
        states.recurrent,
        group.reads,
        group.writes,
        heads,
        sizes.key_head_dim**-0.5,
        width=sizes.conv_width,
        num_key_heads=sizes.num_key_heads,
        num_value_heads=sizes.num_value_heads,
        key_dim=sizes.key_head_dim,
        padded_key_dim=triton.next_power_of_2(sizes.key_head_dim),
        value_dim=sizes.value_head_dim,
        values=values,
    )
    _gate[(num_tokens, sizes.num_value_heads)](
        heads,
        projected,
        net.norm.weight,
        output,
        net.norm.eps,
        row_width=projected.shape[1],
        width=sizes.conv_width,
        num_value_heads=sizes.num_value_heads,
        value_dim=sizes.value_head_dim,
        padded=triton.next_power_of_2(sizes.value_head_dim),
    )
    return output


@triton.jit
def _convolve(
    projected,
    conv,
    states,
    reads,
    writes,
    convolved,
    row_width: tl.constexpr,
    width: tl.constexpr,
    taps: tl.constexpr,
    channels: tl.constexpr,
):
    """Convolves some channels of a token, applies SiLU, and stores what the next token reads."""
    token = tl.program_id(0)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    inside = channel < width
    read = tl.load(reads + token)
    before = states + read * ((taps - 1) * width) + channel
    after = states + tl.load(writes + token) * ((taps - 1) * width) + channel
    x = tl.load(projected + token * row_width + channel, inside, other=0.0)
    total = x.to(tl.float32) * tl.load(conv + channel * taps + taps - 1, inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(taps - 1):
        old = tl.load(before + tap * width, inside & (read >= 0), other=0.0)
        total += old.to(tl.float32) * tl.load(conv + channel * taps + tap, inside, other=0.0).to(tl.float32)
        if tap > 0:
            tl.store(after + (tap - 1) * width, old, inside)
    tl.store(after + (taps - 2) * width, x, inside)
    tl.store(convolved + token * width + channel, total / (1.0 + tl.exp(-total)), inside)


@triton.jit
def _update(
    convolved,
    rates,
    decays,
    biases,
    states,
    reads,
    writes,
    output,
    query_length,
    width: tl.constexpr,
    num_key_heads: tl.constexpr,
    num_value_heads: tl.constexpr,
    key_dim: tl.constexpr,
    padded_key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    values: tl.constexpr,
):
    """Updates some columns of a head's state, and reads them."""
    token, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (num_value_heads // num_key_heads)
    dim = tl.arange(0, padded_key_dim)
    column = tl.program_id(2) * values + tl.arange(0, values)
    row = convolved + token * width
    query = tl.load(row + key_head * key_dim + dim, dim < key_dim, other=0.0)
    key = tl.load(row + (num_key_heads + key_head) * key_dim + dim, dim < key_dim, other=0.0)
    query *= query_length / tl.sqrt(tl.sum(query * query) + 1e-6)
    key /= tl.sqrt(tl.sum(key * key) + 1e-6)
    value = tl.load(row + 2 * num_key_heads * key_dim + head * value_dim + column, column < value_dim, other=0.0)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(rates + token * 2 * num_value_heads + head).to(tl.float32)))
    step = tl.load(rates + (token * 2 + 1) * num_value_heads + head).to(tl.float32) + tl.load(biases + head)
    softplus = tl.where(step > 20.0, step, tl.log(1.0 + tl.exp(tl.minimum(step, 20.0))))
    decay = tl.exp(-tl.exp(tl.load(decays + head)) * softplus)
    read = tl.load(reads + token)
    place = head * key_dim * value_dim + dim[:, None] * value_dim + column[None, :]
    inside = (dim[:, None] < key_dim) & (column[None, :] < value_dim)
    size = num_value_heads * key_dim * value_dim
    state = tl.load(states + read * size + place, inside & (read >= 0), other=0.0) * decay
    change = beta * (value - tl.sum(state * key[:, None], axis=0))
    state += key[:, None] * change[None, :]
    tl.store(states + tl.load(writes + token) * size + place, state, inside)
    result = tl.sum(state * query[:, None], axis=0)
    tl.store(output + (token * num_value_heads + head) * value_dim + column, result, column < value_dim)


@triton.jit
def _gate(
    heads,
    projected,
    weight,
    output,
    eps,
    row_width: tl.constexpr,
    width: tl.constexpr,
    num_value_heads: tl.constexpr,
    value_dim: tl.constexpr,
    padded: tl.constexpr,
):
    """Normalizes a head and multiplies it by its gates."""
    token, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, padded)
    inside = dim < value_dim
    place = head * value_dim + dim
    x = tl.load(heads + token * num_value_heads * value_dim + place, inside, other=0.0)
    gate = tl.load(projected + token * row_width + width + place, inside, other=0.0).to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x) / value_dim + eps) * tl.load(weight + dim, inside, other=0.0).to(tl.float32)
    x *= gate / (1.0 + tl.exp(-gate))
    tl.store(output + token * num_value_heads * value_dim + place, x, inside)
