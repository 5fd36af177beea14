"""Which part of the decoder a rank holds: arithmetic on a model's sizes and on the published names of its tensors.

Heads of attention and features of the feed-forward are parted, as in Megatron-LM (arXiv 1909.08053): what a rank makes
of its part of a first product is all that its part of the second takes, so the ranks' results are summed twice a layer
and at no other place. All else (norms, embedding, output head, towers) each rank holds whole.
"""

import re
from dataclasses import replace

from torch import Tensor

from glimpse.engine.errors import CheckpointError
from glimpse.engine.model_config import TextConfig

_DECODER_TENSOR = re.compile(r"(?:.*\.)?model\.layers\.\d+\.(?:self_attn|mlp)\.(\w+)\.(\w+)")


def shard_config(text: TextConfig, num_ranks: int) -> TextConfig:
    """The sizes of a rank's part of the decoder; the same for all ranks.

    Key and value heads that are fewer than the ranks are held by several.

    Raises:
        CheckpointError: the decoder cannot be parted evenly.
    """
    for count, what in ((text.num_heads, "attention heads"), (text.intermediate_size, "features in its feed-forward")):
        if count % num_ranks:
            raise CheckpointError(
                f"--tensor-parallel-size {num_ranks}: the model has {count} {what}, which it does not divide"
            )
    if text.num_kv_heads % num_ranks and num_ranks % text.num_kv_heads:
        raise CheckpointError(
            f"--tensor-parallel-size {num_ranks}: the model has {text.num_kv_heads} key-value heads, which it neither"
            " divides nor is a multiple of"
        )
    return replace(
        text,
        num_heads=text.num_heads // num_ranks,
        num_kv_heads=max(text.num_kv_heads // num_ranks, 1),
        intermediate_size=text.intermediate_size // num_ranks,
    )


def shard_tensor(name: str, tensor: Tensor, text: TextConfig, *, rank: int, num_ranks: int) -> Tensor:
    """What a rank holds of a tensor, as a view.

    Args:
        name: the published one; of quantized linears also what `engine.loading.weight_conversion` calls their parts.
        tensor: whole, with the output features first and, if it is a matrix, the inputs (or groups of them) second.
        text: the sizes of the whole decoder, which `shard_config` has taken.
        rank: whose part.
        num_ranks: of all.

    Raises:
        CheckpointError: the tensor cannot be parted.
    """
    found = _DECODER_TENSOR.fullmatch(name)
    if found is None or num_ranks == 1:
        return tensor
    if found[2] == "group_index":  # a rank's inputs would belong to groups that are anywhere
        raise CheckpointError(f"--tensor-parallel-size {num_ranks}: gptq with desc_act true cannot be parted")
    match found[1]:
        case "q_proj":
            return tensor[_part(len(tensor), text.num_heads, rank, num_ranks)]
        case "k_proj" | "v_proj":
            return tensor[_part(len(tensor), text.num_kv_heads, rank, num_ranks)]
        case "gate_proj" | "up_proj":
            return tensor[_part(len(tensor), text.intermediate_size, rank, num_ranks)]
        case "o_proj" | "down_proj" if tensor.shape[1] > 1:  # else a scale for all inputs
            num_units = text.num_heads if found[1] == "o_proj" else text.intermediate_size
            return tensor[:, _part(tensor.shape[1], num_units, rank, num_ranks)]
        case _:
            return tensor


def _part(length: int, num_units: int, rank: int, num_ranks: int) -> slice:
    """A rank's share of what belongs to so many heads or features, of each equally much.

    It has one at least: where there are fewer than ranks, neighbours hold the same.
    """
    first = rank * num_units // num_ranks
    last = first + max(num_units // num_ranks, 1)
    return slice(first * length // num_units, last * length // num_units)
