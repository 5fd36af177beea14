"""Tensor-parallel sharding of the decoder, from the model's sizes and the checkpoint names of its tensors.

As in Megatron-LM (arXiv 1909.08053), attention heads and feed-forward features are sharded: the first product of a
block is column-parallel, the second row-parallel, so a layer needs two all-reduces. All other weights (norms,
embedding, output head, encoders) are replicated.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes, ShortConvSizes, StateSizes, TextConfig
from glimpse.engine.errors import CheckpointError

_DECODER_TENSOR = re.compile(
    r"(?:(?:.*\.)?model|mtp)\.layers\.\d+\.(?:self_attn|linear_attn|conv|mlp(?:\.(experts\.\d+|shared_expert))?)\.(\w+)(?:\.(\w+))?"
)


def shard_config(text: TextConfig, num_ranks: int) -> TextConfig:
    """Returns the sizes of one rank's shard of the decoder, which are the same for all ranks.

    If there are fewer key-value heads than ranks, several ranks hold the same head.

    Raises:
        CheckpointError: the decoder cannot be sharded evenly.
    """
    if num_ranks > 1 and text.sliding is not None and text.sliding.kv_heads is not None:
        raise CheckpointError(f"'--tensor-parallel-size': expected 1 for heads that differ by layer, got {num_ranks}")
    counts = [(text.num_heads, "attention heads"), (text.intermediate_size, "features in its feed-forward")]
    if text.experts is not None:
        counts.append((text.experts.intermediate_size, "features in an expert"))
        counts.append((text.experts.shared_size, "features in the shared expert"))
    match text.states:
        case DeltaNetSizes(num_key_heads=count):
            counts.append((count, "heads of keys in its gated delta nets"))
        case ShortConvSizes(conv_width=count):
            counts.append((count, "channels of its convolutions"))
        case None:
            pass
    for count, what in counts:
        if count % num_ranks:
            raise CheckpointError(
                f"'--tensor-parallel-size': expected a divisor of the model's {count} {what}, got {num_ranks}"
            )
    if text.num_kv_heads % num_ranks and num_ranks % text.num_kv_heads:
        raise CheckpointError(
            f"'--tensor-parallel-size': expected a divisor or a multiple of the model's {text.num_kv_heads} key-value"
            f" heads, got {num_ranks}"
        )
    return replace(
        text,
        num_heads=text.num_heads // num_ranks,
        num_kv_heads=max(text.num_kv_heads // num_ranks, 1),
        intermediate_size=text.intermediate_size // num_ranks,
        experts=text.experts
        and replace(
            text.experts,
            intermediate_size=text.experts.intermediate_size // num_ranks,
            shared_size=text.experts.shared_size // num_ranks,
        ),
        states=text.states and _shard_states(text.states, num_ranks),
    )


def _shard_states(sizes: StateSizes, num_ranks: int) -> StateSizes:
    if isinstance(sizes, ShortConvSizes):
        return replace(sizes, conv_width=sizes.conv_width // num_ranks)
    return replace(
        sizes,
        num_key_heads=sizes.num_key_heads // num_ranks,
        num_value_heads=sizes.num_value_heads // num_ranks,
    )


def shard_tensor(name: str, tensor: Tensor, text: TextConfig, *, rank: int, num_ranks: int) -> Tensor:
    """Returns a rank's shard of a tensor, as a view if its rows are consecutive.

    Args:
        name: checkpoint name, or the name that `engine.loading.weight_conversion` gives a tensor of a quantized linear.
        tensor: whole tensor: output features first and, for a matrix, inputs (or groups of inputs) second.
        text: sizes of the whole decoder, checked by `shard_config`.

    Raises:
        CheckpointError: the tensor cannot be sharded.
    """
    found = _DECODER_TENSOR.fullmatch(name)
    if found is None or num_ranks == 1:
        return tensor
    expert, matrix, kind = found.groups()
    features = _num_features(expert, text)
    if kind == "group_index":  # a rank's inputs would belong to groups of other ranks
        raise CheckpointError(f"'--tensor-parallel-size': expected 1 for groups in activation order, got {num_ranks}")
    match matrix:
        case "q_proj" | "q_gate":
            return tensor[_shard(len(tensor), text.num_heads, rank, num_ranks)]
        case "k_proj" | "v_proj":
            return tensor[_shard(len(tensor), text.num_kv_heads, rank, num_ranks)]
        case "gate_proj" | "up_proj":
            return tensor[_shard(len(tensor), features, rank, num_ranks)]
        case "o_proj" | "down_proj" if tensor.shape[1] > 1:  # otherwise one scale for all inputs
            num_units = text.num_heads if matrix == "o_proj" else features
            return tensor[:, _shard(tensor.shape[1], num_units, rank, num_ranks)]
        case module if isinstance(text.states, DeltaNetSizes):
            return _shard_of_delta_net(module, tensor, text.states, rank, num_ranks)
        case "in_proj" | "in_proj_c" | "in_proj_x" | "conv" if isinstance(text.states, ShortConvSizes):
            return tensor[_shard(len(tensor), text.states.conv_width, rank, num_ranks)]
        case "out_proj" if isinstance(text.states, ShortConvSizes) and tensor.shape[1] > 1:
            return tensor[:, _shard(tensor.shape[1], text.states.conv_width, rank, num_ranks)]
        case _:
            return tensor


def _num_features(expert: str | None, text: TextConfig) -> int:
    if expert is None or text.experts is None:
        return text.intermediate_size
    return text.experts.shared_size if expert == "shared_expert" else text.experts.intermediate_size


def _shard_of_delta_net(module: str, tensor: Tensor, sizes: DeltaNetSizes, rank: int, num_ranks: int) -> Tensor:
    match module:
        case "in_proj_z" | "in_proj_b" | "in_proj_a" | "A_log" | "dt_bias":
            return tensor[_shard(len(tensor), sizes.num_value_heads, rank, num_ranks)]
        case "out_proj" if tensor.shape[1] > 1:
            return tensor[:, _shard(tensor.shape[1], sizes.num_value_heads, rank, num_ranks)]
        case "in_proj_qkv" | "conv1d":
            width = sizes.num_key_heads * sizes.key_head_dim
            parts = tensor.split([width, width, sizes.value_width])
            heads = (sizes.num_key_heads, sizes.num_key_heads, sizes.num_value_heads)
            pairs = zip(parts, heads, strict=True)
            return torch.cat([part[_shard(len(part), count, rank, num_ranks)] for part, count in pairs])
        case _:
            return tensor


def _shard(length: int, num_units: int, rank: int, num_ranks: int) -> slice:
    """Returns a rank's slice of a dimension that consists of `num_units` heads or features of equal length.

    Each rank gets at least one unit: with fewer units than ranks, adjacent ranks get the same one.
    """
    first = rank * num_units // num_ranks
    last = first + max(num_units // num_ranks, 1)
    return slice(first * length // num_units, last * length // num_units)
