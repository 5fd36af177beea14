"""The tensor-parallel runner: executes each step on all ranks."""

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass

from glimpse.engine.core.plan import InFlightStep, StepPlan, StepResult
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.parallel.plans import shard_plan
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
