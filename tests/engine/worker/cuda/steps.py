"""Attention steps on the device on which the tests run the kernels: a GPU, or the CPU with Triton's interpreter."""

from functools import partial

import torch
from torch import Tensor

from glimpse.engine.worker.cuda.attention import paged_attention
from glimpse.engine.worker.tensors.paged_plan import PagedPlan, plan_attention
from tests.engine import attention_steps
from tests.engine.attention_steps import Step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

make_cache = partial(attention_steps.make_cache, device=DEVICE)
make_step = partial(attention_steps.make_step, device=DEVICE)


def plan_of(step: Step) -> PagedPlan:
    return plan_attention(
        query_lengths=step.query_lengths, key_lengths=step.key_lengths, block_tables=step.block_tables
    )


def attend(step: Step) -> Tensor:
    return paged_attention(step.query, step.cache, plan_of(step))
