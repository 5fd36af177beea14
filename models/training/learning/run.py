"""A training run: the workers' steps, and the leader's schedule, checkpoints and log."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

from models.training.batching.producer import Producer
from models.training.learning.blocks import make_compute
from models.training.learning.learner import Figures, Learner, figure_names
from models.training.learning.network import Sizes
from models.training.learning.optimizer import Rates, Slot, update
from models.training.learning.plan import Plan
from models.training.learning.progress import Progress
from models.training.learning.shared import Barrier, Memory, attach_weights, share_of, slots, store_gradients
from models.training.learning.state import State, save_state
from models.training.mix import TASKS

WARM_UP_STEPS = 100
"""Steps of warm-up in each phase, and for a new optimizer."""
FIGURES = figure_names(list(TASKS))
"""The figures, in the order in which they are summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One run of the script."""

    folder: Path
    """Folder of checkpoint and log."""
    sizes: Sizes
    plan: Plan
    rates: Rates
    device: str
    num_workers: int
    num_producers: int
    """Processes that generate each worker's samples."""
    compiled: bool
    """Fuse the network's arithmetic."""
    dtype: torch.dtype
    """Dtype of activations."""
    first_step: int
    begun: int
    """The step at which the optimizer started."""
    max_steps: int | None
    """Limit of this run."""
    max_seconds: float | None
    decays: bool
    """Whether the learning rate decays to zero by the run's end."""
    learns_to_see: bool
    """Whether the vision encoder is trained; if not, steps are faster."""
    save_seconds: float
    """Seconds between checkpoints."""

    def num_updates(self, step: int) -> int:
        """Returns the optimizer's updates before a step, within the step's phase."""
        phase = 0 if self.plan.vision_only(step) else self.plan.vision_steps
        return step - max(phase, self.begun)


def train(run: TrainingRun, memory: Memory) -> None:
    """Runs training with one process per worker."""
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once for all processes
    barrier = context.Barrier(run.num_workers)
    others = [
        context.Process(target=_work_or_abort, args=(run, memory, barrier, worker))
        for worker in range(1, run.num_workers)
    ]
    for process in others:
        process.start()
    try:
        _work_or_abort(run, memory, barrier, 0)
    finally:
        for process in others:
            process.join()


def _work_or_abort(run: TrainingRun, memory: Memory, barrier: Any, worker: int) -> None:
    """Runs a worker; on failure, aborts the others."""
    try:
        work(run, memory, barrier, worker)
    except BaseException:
        barrier.abort()
        raise


def work(run: TrainingRun, memory: Memory, barrier: Barrier, worker: int) -> None:
    """Runs one worker's steps. The first worker decides when to stop, saves and reports."""
    device = torch.device(run.device)
    if run.compiled:
        _prepare_compiler()
    if device.type == "cpu":
        torch.set_num_threads(1)
    compute = make_compute(run.dtype, compiled=run.compiled)
    learner = Learner(run.sizes, compute, learns_to_see=run.learns_to_see).to(device)
    places = slots(learner, memory)
    attach_weights(learner, places)
    mine = share_of(places.values(), worker, run.num_workers)
    leader = Leader(run, memory) if worker == 0 else None
    producer = Producer(
        run.folder,
        run.plan,
        first_step=run.first_step,
        worker=worker,
        num_processes=run.num_producers,
    )
    try:
        for step, batch in zip(count(run.first_step), producer.batches(), strict=False):
            if leader is not None:
                leader.order(step)
            barrier.wait()
            if not memory.orders[0]:
                break
            _note(memory.sums[worker], learner.learn(batch, device))
            store_gradients(learner, places, worker)
            barrier.wait()
            _move(mine, run, memory, step)
            barrier.wait()
    finally:
        producer.close()


def _move(mine: Sequence[Slot], run: TrainingRun, memory: Memory, step: int) -> None:
    """Updates a worker's share of the parameters that this phase trains."""
    learns = {True: run.learns_to_see, False: not run.plan.vision_only(step)}
    moved = [slot for slot in mine if learns[not slot.name.startswith("network.model.")]]
    update(moved, run.rates, float(memory.orders[1]), run.num_updates(step), dtype=run.dtype)


class Leader:
    """The first worker's extra duties: schedule, checkpoints, log and signals."""

    def __init__(self, run: TrainingRun, memory: Memory) -> None:
        self._run = run
        self._memory = memory
        self._progress = Progress(run.folder, FIGURES)
        self._started = self._saved = time.monotonic()
        self._ended = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def order(self, step: int) -> None:
        """Publishes whether there is another step and its rate; between steps no weight changes."""
        done = self._part_done(step)
        go_on = done < 1 and not self._ended
        self._memory.orders[0] = float(go_on)
        self._memory.orders[1] = self._factor(step, done)
        self._progress.report(step, self._memory.sums, done, flush=not go_on)
        if not go_on or time.monotonic() - self._saved > self._run.save_seconds:
            self.save(step)

    def save(self, step: int) -> None:
        """Writes the checkpoint."""
        run = self._run
        state = State.of(self._memory, step=step, begun=run.begun, sizes=run.sizes, plan=run.plan)
        save_state(run.folder, state)
        self._saved = time.monotonic()

    def _part_done(self, step: int) -> float:
        run = self._run
        by_steps = (step - run.first_step) / run.max_steps if run.max_steps else 0.0
        seconds = time.monotonic() - self._started
        return max(by_steps, seconds / run.max_seconds if run.max_seconds else 0.0)

    def _factor(self, step: int, done: float) -> float:
        warm = min(1.0, (self._run.num_updates(step) + 1) / WARM_UP_STEPS)
        return warm * (1 - done) if self._run.decays else warm

    def _end(self, _number: int, _frame: Any) -> None:
        self._ended = True


def _note(sums: Tensor, measured: Figures) -> None:
    for name, (total, times) in measured.items():
        row = sums[FIGURES.index(name)]
        row[0] += total
        row[1] += times


def _prepare_compiler() -> None:
    # Loading it takes seconds, in each worker.
    import torch._dynamo  # noqa: PLC0415
    import torch.fx.experimental._config as symbolic_shapes  # noqa: PLC0415

    torch._dynamo.config.cache_size_limit = 256  # noqa: SLF001 # pyright: ignore[reportPrivateImportUsage]
    symbolic_shapes.use_duck_shape = False  # equal sizes are chance here
