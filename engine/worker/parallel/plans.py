"""Splits a step's plan into one plan for each rank. Plain values: no torch, no processes."""

from dataclasses import replace

import msgspec

from glimpse.engine.core.plan import Encode, StepPlan
from glimpse.engine.protocol.media import Embeddings
from glimpse.engine.protocol.sampling_params import SamplingParams


def shard_plan(plan: StepPlan, num_ranks: int) -> list[StepPlan]:
    """Returns the plan of each rank.

    All ranks compute the same tokens. The content of an image, video or audio input goes only to the rank that encodes
    it, and sampling and pooling parameters only to rank 0.
    """
    owners = assign_encoder_ranks(plan.encode, num_ranks)
    first, *others = (_with_media_of(plan, owners, rank) for rank in range(num_ranks))
    return [first, *map(_without_results, others)]


def assign_encoder_ranks(media: tuple[Encode, ...], num_ranks: int) -> list[int]:
    """Returns the rank that encodes each media item, chosen greedily so that all ranks do about the same work."""
    owners = [0] * len(media)
    loads = [0] * num_ranks
    for index in sorted(range(len(media)), key=lambda index: -_work(media[index])):  # largest first
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += _work(media[index])
    return owners


def _work(medium: Encode) -> int:
    """The size of the encoder's input in bytes. Embeddings need no encoder."""
    return 0 if medium.content is None or isinstance(medium.content, Embeddings) else medium.content.nbytes


def _with_media_of(plan: StepPlan, owners: list[int], rank: int) -> StepPlan:
    encode = (
        medium if owner == rank else replace(medium, content=None)
        for medium, owner in zip(plan.encode, owners, strict=True)
    )
    return replace(plan, encode=tuple(encode))


def _without_results(plan: StepPlan) -> StepPlan:
    return replace(
        plan,
        started=tuple(replace(start, sampling=SamplingParams(), pooling=None) for start in plan.started),
        chunks=tuple(msgspec.structs.replace(chunk, samples=False, num_draft_tokens=0) for chunk in plan.chunks),
    )
