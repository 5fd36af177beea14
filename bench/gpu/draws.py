"""How long it takes to draw tokens, with the backend's kernels or with torch."""

import statistics
import time
from dataclasses import replace

import torch
from torch import Tensor

from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.device_sampler import DeviceSample
from glimpse.engine.worker.execution.sampler import SequenceSampler
from glimpse.engine.worker.tensors.draws import DrawTokens

DRAWS = (
    ("temperature 1", SamplingParams(), 4.0),
    ("top_p 0.95", SamplingParams(top_p=0.95), 4.0),
    ("top_k 50, top_p 0.95", SamplingParams(top_k=50, top_p=0.95), 4.0),
    ("top_p 0.95 of a flat distribution", SamplingParams(top_p=0.95), 0.5),
)
"""Name, parameters, and standard deviation of the logits: 4 is about a model's, and 0.5 leaves most tokens likely."""


def draw_seconds(
    logits: Tensor, params: SamplingParams, draw_tokens: DrawTokens | None, *, repeats: int
) -> tuple[float, float]:
    """Returns medians: the host's time to launch a step's sampling, and the time until its tokens are on the host.

    Args:
        logits: float32 [rows, vocab_size], on the device.
        params: of all rows.
        draw_tokens: kernels; torch draws without.
        repeats: how often both are measured, after two steps that compile and allocate.
    """
    samplers = [
        SequenceSampler(replace(params, seed=row), prompt_token_ids=(), eos_token_ids=()) for row in range(len(logits))
    ]
    launched, done = list[float](), list[float]()
    for index in range(2 + repeats):
        for sampler in samplers:
            sampler.num_generated = index
            sampler.draw()  # its random numbers are no part of the measurement
        if logits.is_cuda:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        choice = DeviceSample(logits, samplers, draw_tokens)
        launched.append(time.perf_counter() - begun)
        choice.result()
        done.append(time.perf_counter() - begun)
    return statistics.median(launched[2:]), statistics.median(done[2:])
