"""Draws on the device on which the tests run the kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.tensors.draws import DrawParams


def draw_params(
    samplings: Sequence[SamplingParams],
    uniforms: Sequence[float],
    *,
    rows: Sequence[int] | None = None,
    device: torch.device | None = None,
) -> DrawParams:
    """Returns the parameters of draws from these rows, or from the first ones."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return DrawParams(
        rows=torch.tensor(range(len(samplings)) if rows is None else rows, dtype=torch.int64, device=device),
        temperature=column([each.temperature for each in samplings]),
        top_k=torch.tensor([each.top_k for each in samplings], dtype=torch.int64, device=device),
        min_p=column([each.min_p for each in samplings]),
        top_p=column([each.top_p for each in samplings]),
        uniform=column(uniforms),
    )
