"""Encoder outputs that each rank has made a part of, given to all. Knows tensors and the group, no encoder."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from glimpse.engine.parallel.group import Group


def share_outputs(
    keys: Sequence[bytes],
    own: Mapping[bytes, Tensor],
    group: Group,
    *,
    hidden_size: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[bytes, Tensor]:
    """The outputs for all keys, each made by one rank.

    Where all others have zeros a sum hands a value on unchanged, so two sums serve any number of media: of how many
    rows each output has, which a rank knows of its own only, and of the rows.

    Args:
        keys: of the step's media, the same on all ranks.
        own: what this rank has made: [rows, hidden_size] each.
        group: of all ranks.
        hidden_size: of the decoder.
        device: of the outputs.
        dtype: of the outputs.
    """
    num_rows = torch.tensor([len(own[key]) if key in own else 0 for key in keys], device=device)
    lengths: list[int] = group.sum(num_rows).tolist()
    rows = torch.zeros(sum(lengths), hidden_size, device=device, dtype=dtype)
    outputs = dict(zip(keys, rows.split(lengths), strict=True))
    for key, output in own.items():
        outputs[key].copy_(output)
    group.sum(rows)
    # Copies: views of what was summed would keep all of it in memory until the last of them is evicted.
    return {key: output.clone() for key, output in outputs.items()}
