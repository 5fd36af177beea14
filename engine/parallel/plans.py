"""One step's plan as several: what each rank carries out of it. Plain values, no torch and no processes."""

import math
from dataclasses import replace

from glimpse.engine.plan import Embeddings, Encode, SequenceStart, StepPlan
from glimpse.engine.sampling_params import SamplingParams

_NO_SAMPLING = SamplingParams()


def shard_plan(plan: StepPlan, num_ranks: int) -> list[StepPlan]:
    """For each rank its plan.

    All compute the same tokens. A medium's content goes to the rank that encodes it alone, and what sampling needs to
    rank 0 alone.
    """
    owners = assign_encoder_ranks(plan.encode, num_ranks)
    first, *others = (_with_media_of(plan, owners, rank) for rank in range(num_ranks))
    return [first, *map(_without_sampling, others)]


def assign_encoder_ranks(media: tuple[Encode, ...], num_ranks: int) -> list[int]:
    """For each medium the rank that encodes it, so that they have about equally much to do."""
    owners = [0] * len(media)
    loads = [0] * num_ranks
    for index in sorted(range(len(media)), key=lambda index: -_work(media[index])):  # large ones first
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += _work(media[index])
    return owners


def _work(medium: Encode) -> int:
    """In patches, or in what a sound has in their place; given embeddings are only copied."""
    return 0 if isinstance(medium.content, Embeddings) else math.prod(medium.grid_thw)


def _with_media_of(plan: StepPlan, owners: list[int], rank: int) -> StepPlan:
    encode = (
        medium if owner == rank else replace(medium, content=None)
        for medium, owner in zip(plan.encode, owners, strict=True)
    )
    return replace(plan, encode=tuple(encode))


def _without_sampling(plan: StepPlan) -> StepPlan:
    return replace(
        plan,
        started=tuple(_without_params(start) for start in plan.started),
        chunks=tuple(replace(chunk, samples=False, num_draft_tokens=0) for chunk in plan.chunks),
    )


def _without_params(start: SequenceStart) -> SequenceStart:
    return replace(start, sampling=_NO_SAMPLING)
