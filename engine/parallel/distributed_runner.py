"""A step carried out by all ranks: the runner that rank 0's core has. Knows who gets which plan, not what is in it."""

import contextlib
import logging
from collections.abc import Generator
from dataclasses import dataclass

from glimpse.engine.execution.runner import ModelRunner
from glimpse.engine.parallel.plans import shard_plan
from glimpse.engine.parallel.ranks import Ranks
from glimpse.engine.plan import InFlightStep, StepPlan, StepResult

_log = logging.getLogger(__name__)


class ParallelRunner:
    """Rank 0's own runner and the other ranks. The next step's tokens are to be known when it is launched.

    A step that does not come to its end leaves the ranks in different places of it, and no way to bring them together
    again: they are given up.
    """

    def __init__(self, own: ModelRunner, ranks: Ranks) -> None:
        self._own = own
        self._ranks = ranks

    def launch(self, plan: StepPlan) -> InFlightStep:
        """Begins a step on all ranks. What is sampled is this one's."""
        own, *others = shard_plan(plan, self._ranks.num_ranks)
        with _together(self._ranks):
            self._ranks.execute(others)
            return _Pending(self._own.launch(own), self._ranks)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step that is under way on all ranks."""

    own: InFlightStep
    ranks: Ranks

    def result(self) -> StepResult:
        with _together(self.ranks):
            return self.own.result()


@contextlib.contextmanager
def _together(ranks: Ranks) -> Generator[None]:
    try:
        yield
    except BaseException:
        _log.exception("a step failed on rank 0; the ranks are given up")
        ranks.terminate()
        raise
