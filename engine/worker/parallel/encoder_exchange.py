"""All-gathers encoder outputs, where each rank has encoded some of a step's media."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from glimpse.engine.worker.parallel.group import Group


def share_outputs(
    keys: Sequence[bytes],
    own: Mapping[bytes, Tensor],
    group: Group,
    *,
    row_width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[bytes, Tensor]:
    """Returns the outputs for all keys, each computed by one rank.

    Two all-reduces serve any number of media: one for the number of rows of each output, which only its owner knows,
    and one for the rows. All ranks but the owner contribute zeros, so the sums are exact.

    Args:
        keys: keys of the step's media, the same on all ranks.
        own: outputs of this rank, [rows, row_width] each.
        row_width: values of an encoder output for each placeholder token.
    """
    num_rows = torch.tensor([len(own[key]) if key in own else 0 for key in keys], device=device)
    lengths: list[int] = group.sum(num_rows).tolist()
    rows = torch.zeros(sum(lengths), row_width, device=device, dtype=dtype)
    outputs = dict(zip(keys, rows.split(lengths), strict=True))
    for key, output in own.items():
        outputs[key].copy_(output)
    group.sum(rows)
    # Copies: a view would keep the whole sum in memory until the last output is evicted.
    return {key: output.clone() for key, output in outputs.items()}
