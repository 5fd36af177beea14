"""Draws tokens on CUDA in two launches, whatever their parameters and however flat the distribution.

`execution/sampler.py` is the reference implementation: with the same random number it draws the same token,
unless the number is within rounding errors of the border between two tokens, or tokens are equally likely; of those the
lowest ids come first here.
"""
# pyright: reportCallIssue=false
# (a launch takes options in addition to the kernel's arguments)

import torch
from torch import Tensor

from glimpse.engine.worker.cuda.sampling_kernels import draw_rows, survey_rows
from glimpse.engine.worker.tensors.draws import DrawParams

LIST_SIZE = 16384
"""Tokens that fit into the list of a row."""
LISTED_BITS = 16
"""Tokens are listed that are at least 2 ** -16 as likely as the most likely one."""
SURVEY_TILE = 4096
"""Logits per iteration of a pass over all of a row."""
DRAW_TILE = 2048
"""Logits per iteration of a search. Each is compared with `WAYS` thresholds."""
WAYS = 8
"""Parts into which each pass of a search divides the range."""


def draw_tokens(logits: Tensor, params: DrawParams, token_ids: Tensor) -> None:
    """Draws a token for some rows, after temperature, min_p, top_k and top_p.

    Args:
        logits: float32 [rows of logits, vocab_size]; a row is contiguous.
        token_ids: int64 [rows of logits]; the drawn tokens are written to their rows, others are kept.
    """
    num_rows, vocab_size = len(params.rows), logits.shape[1]
    weight_bits = 62 - vocab_size.bit_length()  # the sum of all weights fits into 63 bits
    best = logits.new_empty(num_rows)
    sums = logits.new_empty((num_rows, 2), dtype=torch.int64)
    counts = logits.new_empty((num_rows, 2), dtype=torch.int32)
    listed_logits = logits.new_empty((num_rows, LIST_SIZE))
    listed_ids = logits.new_empty((num_rows, LIST_SIZE), dtype=torch.int32)
    survey_rows[(num_rows,)](
        logits,
        logits.stride(0),
        params.rows,
        params.temperature,
        params.min_p,
        best,
        sums,
        counts,
        listed_logits,
        listed_ids,
        vocab_size,
        list_size=LIST_SIZE,
        listed_bits=LISTED_BITS,
        weight_bits=weight_bits,
        tile=SURVEY_TILE,
        num_warps=16,
    )
    draw_rows[(num_rows,)](
        logits,
        logits.stride(0),
        params.rows,
        params.temperature,
        params.top_k,
        params.top_p,
        params.uniform,
        best,
        sums,
        counts,
        listed_logits,
        listed_ids,
        token_ids,
        vocab_size,
        list_size=LIST_SIZE,
        weight_bits=weight_bits,
        tile=DRAW_TILE,
        ways=WAYS,
        num_warps=16,
    )
