"""Gated delta nets (arXiv 2412.06464), in plain torch: the reference implementation.

A layer keeps a matrix S for each head of values. A token with query q, key k, value v, decay a and rate b turns it into
S' = a S + b k (v - a kᵀ S), and its output is qᵀ S'. Before that, queries, keys and values go through a convolution
over the last tokens, whose inputs the layer keeps too. Numerics follow transformers' models/qwen3_5/modeling_qwen3_5.py
except that everything between the products is computed in float32.

`plan_states` runs once per step, `delta_net` in each layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes
from glimpse.engine.worker.layers.linear import Linear, UnquantizedLinear, empty_parameter
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.tensors.batch import StateRows
from glimpse.engine.worker.tensors.kv_cache import LayerStates

CHUNK = 64
"""Tokens whose updates are computed at once, by solving a triangular system (section 3.3 of the paper)."""


class DeltaNet(nn.Module):
    """The weights of a gated delta net, but those of its output projection."""

    def __init__(self, sizes: DeltaNetSizes, hidden_size: int, *, eps: float) -> None:
        super().__init__()
        self.sizes = sizes
        # Queries, keys and values, then the gates of the output.
        self.in_proj = Linear(hidden_size, (sizes.conv_width, sizes.value_width), bias=False)
        # Rates and decays: a few rows, which decide for how long the state remembers.
        self.rates_proj = UnquantizedLinear(hidden_size, (sizes.num_value_heads,) * 2, bias=False)
        self.conv = empty_parameter(sizes.conv_width, sizes.conv_size)
        self.decay = empty_parameter(sizes.num_value_heads)  # logarithm of a rate
        self.decay_bias = empty_parameter(sizes.num_value_heads)
        self.norm = RMSNorm(sizes.value_head_dim, eps=eps)

    def _apply(self, fn: Any, recurse: bool = True) -> "DeltaNet":
        """Keeps in float32 what decays are computed from: their rounding adds up over thousands of tokens."""
        super()._apply(fn, recurse)
        for parameter in (self.decay, self.decay_bias):
            parameter.data = parameter.data.float()
        return self

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names, without the module's prefix."""
        yield from self.in_proj.named_weights("in_proj_qkv", "in_proj_z")
        yield from self.rates_proj.named_weights("in_proj_b", "in_proj_a")
        yield "conv1d.weight", self.conv.data[:, None]
        yield "A_log", self.decay.data
        yield "dt_bias", self.decay_bias.data
        yield "norm.weight", self.norm.weight.data


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTokens:
    """Tokens of different sequences, each the only one of its rows."""

    rows: Tensor | slice
    """int64 [tokens], or all rows of the step."""
    reads: Tensor
    """int64 [tokens]: states before the tokens; negative: zeros."""
    writes: Tensor
    """int64 [tokens]"""
    begins: bool
    """Some of `reads` are negative."""


StatePlan: TypeAlias = Sequence[SingleTokens | StateRows]
"""A step's rows in groups. A group may read what those before it have written."""


def state_rounds(states: Sequence[StateRows]) -> list[list[StateRows]]:
    """Divides parts of sequences so that those of one round are of different sequences, each in its order."""
    rounds: list[list[StateRows]] = []
    place = -1
    for rows in states:
        place = place + 1 if rows.continues else 0
        if place == len(rounds):
            rounds.append([])
        rounds[place].append(rows)
    return rounds


def plan_states(states: Sequence[StateRows], device: torch.device) -> StatePlan:
    """Groups a step's rows: those of one token together, in rounds if a sequence has several parts.

    Args:
        states: parts of the step's sequences, each in its order.
    """
    groups: list[SingleTokens | StateRows] = []
    for parts in state_rounds(states):
        groups += [part for part in parts if part.num_rows > 1]
        if singles := [part for part in parts if part.num_rows == 1]:
            # In columns, each of which is contiguous.
            table = [[getattr(part, name) for part in singles] for name in ("row", "reads", "writes")]
            rows, reads, writes = torch.tensor(table, device=device)
            groups.append(
                SingleTokens(
                    rows=slice(None) if len(singles) == len(states) else rows,
                    reads=reads,
                    writes=writes,
                    begins=min(table[1]) < 0,
                )
            )
    return groups


def update_singles(projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, group: SingleTokens) -> Tensor:
    """Does what `delta_net` does for the tokens of one group; `projected` and `rates` have no others."""
    window, state = states.conv[group.reads], states.recurrent[group.reads]
    if group.begins:
        window[group.reads < 0] = 0
        state[group.reads < 0] = 0
    mixed, gates, beta, decay = _inputs(projected, rates, net)
    window = torch.cat([window, mixed[:, None]], dim=1)  # [tokens, conv_size, conv_width]
    states.conv[group.writes] = window[:, 1:]
    convolved = functional.silu((window.float() * net.conv.float().T).sum(dim=1))
    query, key, value = _heads(convolved, net.sizes)
    num_values = net.sizes.num_value_heads // net.sizes.num_key_heads
    query, key = (each.repeat_interleave(num_values, dim=1) for each in (query, key))
    state *= decay.exp()[..., None, None]
    seen = (key[:, :, None] @ state).squeeze(2)
    state += key[..., None] * (beta[..., None] * (value - seen))[:, :, None]
    states.recurrent[group.writes] = state
    return _gated((query[:, :, None] @ state).squeeze(2), gates, net)


UpdateSingles: TypeAlias = Callable[[Tensor, Tensor, DeltaNet, LayerStates, SingleTokens], Tensor]


def delta_net(
    projected: Tensor,
    rates: Tensor,
    net: DeltaNet,
    states: LayerStates,
    plan: StatePlan,
    update: UpdateSingles = update_singles,
) -> Tensor:
    """Updates the layer's states with a step's tokens, and computes the tokens' outputs.

    Args:
        projected: [tokens, conv_width + value_width], from `in_proj`.
        rates: [tokens, 2 · value_heads], from `rates_proj`.

    Returns:
        [tokens, value_width]
    """
    if len(plan) == 1 and isinstance(plan[0], SingleTokens):
        return update(projected, rates, net, states, plan[0])
    output = projected.new_empty(len(projected), net.sizes.value_width)
    for group in plan:
        if isinstance(group, SingleTokens):
            output[group.rows] = update(projected[group.rows], rates[group.rows], net, states, group)
        else:
            rows = slice(group.row, group.row + group.num_rows)
            output[rows] = _update_many(projected[rows], rates[rows], net, states, group)
    return output


def _update_many(projected: Tensor, rates: Tensor, net: DeltaNet, states: LayerStates, rows: StateRows) -> Tensor:
    """Does what `delta_net` does for consecutive tokens of a sequence; `projected` and `rates` have no others."""
    window, state = states.conv[max(rows.reads, 0)], states.recurrent[max(rows.reads, 0)]
    if rows.reads < 0:
        window, state = torch.zeros_like(window), torch.zeros_like(state)
    mixed, gates, beta, decay = _inputs(projected, rates, net)
    window = torch.cat([window, mixed])  # [conv_size - 1 + tokens, conv_width]
    states.conv[rows.writes] = window[rows.num_rows :]
    convolved = functional.conv1d(window.float().T, net.conv.float()[:, None], groups=len(net.conv)).T
    query, key, value = _heads(functional.silu(convolved), net.sizes)
    output, states.recurrent[rows.writes] = chunked_delta_rule(query, key, value, decay, beta, state)
    return _gated(output, gates, net)


def _inputs(projected: Tensor, rates: Tensor, net: DeltaNet) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns what the convolution reads, the gates of the output, and float32 rates and logarithms of decays."""
    mixed, gates = projected.split([net.sizes.conv_width, net.sizes.value_width], dim=1)
    beta, steps = rates.float().chunk(2, dim=1)
    return mixed, gates, beta.sigmoid(), -net.decay.exp() * functional.softplus(steps + net.decay_bias)


def _gated(output: Tensor, gates: Tensor, net: DeltaNet) -> Tensor:
    """Normalizes the heads of [tokens, value_heads, value_head_dim] and applies the gates: [tokens, value_width]"""
    normed = output * torch.rsqrt(output.square().mean(dim=-1, keepdim=True) + net.norm.eps)
    gated = normed * net.norm.weight.float() * functional.silu(gates.float().view_as(output))
    return gated.to(gates.dtype).flatten(1)


def _heads(convolved: Tensor, sizes: DeltaNetSizes) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, of length key_head_dim ** -0.5, keys of length 1, and values: [tokens, heads, head_dim] each."""
    width = sizes.num_key_heads * sizes.key_head_dim
    query, key, value = convolved.split([width, width, sizes.value_width], dim=-1)
    query, key = (_normalized(each.unflatten(-1, (sizes.num_key_heads, -1))) for each in (query, key))
    return query * sizes.key_head_dim**-0.5, key, value.unflatten(-1, (sizes.num_value_heads, -1))


def _normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def chunked_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Updates a state with consecutive tokens, `CHUNK` at a time; all arguments are float32.

    Args:
        query: [tokens, key_heads, key_head_dim]
        key: [tokens, key_heads, key_head_dim]
        value: [tokens, value_heads, value_head_dim]
        decay: [tokens, value_heads]: logarithms of the decays, at most 0.
        beta: [tokens, value_heads]
        state: [value_heads, key_head_dim, value_head_dim], not changed.

    Returns:
        The outputs, [tokens, value_heads, value_head_dim], and the state after the last token.
    """
    num_tokens, num_heads = beta.shape
    size = min(CHUNK, num_tokens)
    padding = -num_tokens % size

    def in_chunks(x: Tensor) -> Tensor:  # [tokens, heads, …] → [chunks, value_heads, size, …]
        # Padded tokens have no decay, and keys and values of zero.
        padded = functional.pad(x, (*[0] * (2 * x.dim() - 1), padding))
        chunks = padded.unflatten(0, (-1, size)).transpose(1, 2)
        return chunks.repeat_interleave(num_heads // x.shape[1], dim=1)

    query, key, value, decay, beta = map(in_chunks, (query, key, value, decay, beta))
    total = decay.cumsum(dim=-1)  # from the start of the chunk
    shrink = (total[..., :, None] - total[..., None, :]).masked_fill_(_later(size, key.device), float("-inf")).exp_()
    # What a token writes depends on what those before it in the chunk have written: a unit lower triangular system.
    system = (beta[..., None] * key) @ key.transpose(-1, -2) * shrink
    wanted = torch.cat([value, key * total.exp()[..., None]], dim=-1) * beta[..., None]
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    new_values, old_keys = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    attention = query @ key.transpose(-1, -2) * shrink
    query = query * total.exp()[..., None]
    key = (key * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    kept = total[..., -1].exp()[..., None, None]
    outputs: list[Tensor] = []
    for chunk in range(len(query)):
        written = new_values[chunk] - old_keys[chunk] @ state
        outputs.append(query[chunk] @ state + attention[chunk] @ written)
        state = state * kept[chunk] + key[chunk] @ written
    output = torch.stack(outputs).transpose(1, 2).flatten(0, 1)
    return output[:num_tokens], state


def _later(size: int, device: torch.device) -> Tensor:
    """Returns bool [size, size]: whether the second token comes after the first."""
    return torch.ones(size, size, dtype=torch.bool, device=device).triu_(1)
