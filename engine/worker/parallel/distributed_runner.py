"""The tensor-parallel runner: executes each step on all ranks, each with its own part of the plan."""

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass, replace

import msgspec

from glimpse.engine.core.plan import Encode, InFlightStep, StepPlan, StepResult
from glimpse.engine.protocol.media import Embeddings
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.parallel.ranks import Ranks

_log = logging.getLogger(__name__)


class ParallelRunner:
    """Rank 0's local runner together with the other ranks.

    All tokens of a step must be known when it is launched. A step that fails leaves the ranks at different points of
    their computation, with no way to synchronize them again, so a failure terminates them.
    """

    def __init__(self, local: ModelRunner, ranks: Ranks) -> None:
        self._local = local
        self._ranks = ranks

    def launch(self, plan: StepPlan) -> InFlightStep:
        """Starts a step on all ranks. Only this rank samples."""
        local, *others = shard_plan(plan, self._ranks.num_ranks)
        with _terminate_on_error(self._ranks):
            self._ranks.execute(others)
            return _ParallelStep(self._local.launch(local), self._ranks)


@dataclass(frozen=True, slots=True)
class _ParallelStep:
    """A step that was launched on all ranks."""

    local: InFlightStep
    ranks: Ranks

    def result(self) -> StepResult:
        with _terminate_on_error(self.ranks):
            return self.local.result()


@contextlib.contextmanager
def _terminate_on_error(ranks: Ranks) -> Generator[None]:
    try:
        yield
    except BaseException:
        _log.exception("a step failed on rank 0; terminating the other ranks")
        ranks.terminate()
        raise


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
