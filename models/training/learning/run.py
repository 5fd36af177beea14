"""A stretch of training as it is carried out: workers step by step, and what the first of them does besides."""

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

from models.training.learning.blocks import make_compute
from models.training.learning.learner import Figures, Learner, figure_names
from models.training.learning.network import Sizes
from models.training.learning.optimizer import Rates, Slot, update
from models.training.learning.plan import Plan
from models.training.learning.producer import Producer
from models.training.learning.progress import Progress
from models.training.learning.shared import Barrier, Memory, attach_weights, share_of, slots, store_gradients
from models.training.learning.state import State, save_state
from models.training.mix import TASKS

WARM_UP_STEPS = 100
"""Of each phase, and of an optimiser that begins anew."""
FIGURES = figure_names(list(TASKS))
"""What is measured, in the order in which it is summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One run of the script."""

    folder: Path
    """Of checkpoint and log."""
    sizes: Sizes
    plan: Plan
    rates: Rates
    device: str
    num_workers: int
    num_producers: int
    """Processes that draw each worker's samples."""
    compiled: bool
    """Fuse the network's arithmetic."""
    dtype: torch.dtype
    """Of activations."""
    first_step: int
    begun: int
    """The step before which the optimiser knew nothing."""
    max_steps: int | None
    """Of this stretch."""
    max_seconds: float | None
    decays: bool
    """The rate goes down to nothing until the stretch's end."""
    save_seconds: float
    """Between two checkpoints."""

    def num_updates(self, step: int) -> int:
        """That the optimiser has made before a step, in the step's phase."""
        phase = 0 if self.plan.eyes_only(step) else self.plan.eyes_steps
        return step - max(phase, self.begun)


def run(stretch: Stretch, memory: Memory) -> None:
    """Carries out a stretch with as many processes as it has workers."""
    context = torch.multiprocessing.get_context("spawn")
    barrier = context.Barrier(stretch.num_workers)
    others = [
        context.Process(target=_work_or_abort, args=(stretch, memory, barrier, worker))
        for worker in range(1, stretch.num_workers)
    ]
    for process in others:
        process.start()
    try:
        _work_or_abort(stretch, memory, barrier, 0)
    finally:
        for process in others:
            process.join()


def _work_or_abort(stretch: Stretch, memory: Memory, barrier: Any, worker: int) -> None:
    """A worker that fails takes the others with it."""
    try:
        work(stretch, memory, barrier, worker)
    except BaseException:
        barrier.abort()
        raise


def work(stretch: Stretch, memory: Memory, barrier: Barrier, worker: int) -> None:
    """One worker's steps. The first decides when to end, saves and reports."""
    device = torch.device(stretch.device)
    if stretch.compiled:
        _prepare_compiler()
    if device.type == "cpu":
        torch.set_num_threads(1)
    learner = Learner(stretch.sizes, make_compute(stretch.dtype, compiled=stretch.compiled)).to(device)
    places = slots(learner, memory)
    attach_weights(learner, places)
    mine = share_of(places.values(), worker, stretch.num_workers)
    leader = Leader(stretch, memory) if worker == 0 else None
    producer = Producer(
        stretch.folder,
        stretch.plan,
        first_step=stretch.first_step,
        worker=worker,
        num_processes=stretch.num_producers,
    )
    try:
        for step, batch in zip(count(stretch.first_step), producer.batches(), strict=False):
            if leader is not None:
                leader.order(step)
            barrier.wait()
            if not memory.orders[0]:
                break
            _note(memory.sums[worker], learner.learn(batch, device))
            store_gradients(learner, places, worker)
            barrier.wait()
            _move(mine, stretch, memory, step)
            barrier.wait()
    finally:
        producer.close()


def _move(mine: Sequence[Slot], stretch: Stretch, memory: Memory, step: int) -> None:
    """Moves a worker's share of the parameters, as far as they learn in this phase."""
    eyes_only = stretch.plan.eyes_only(step)
    moved = [slot for slot in mine if not eyes_only or not slot.name.startswith("network.model.")]
    update(moved, stretch.rates, float(memory.orders[1]), stretch.num_updates(step))


class Leader:
    """What the first worker does besides: the schedule, checkpoints, the log, and listening to signals."""

    def __init__(self, stretch: Stretch, memory: Memory) -> None:
        self._stretch = stretch
        self._memory = memory
        self._progress = Progress(stretch.folder, FIGURES)
        self._started = self._saved = time.monotonic()
        self._ended = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)

    def order(self, step: int) -> None:
        """Says whether there is another step and with which rate; between steps all weights are at rest."""
        done = self._part_done(step)
        go_on = done < 1 and not self._ended
        self._memory.orders[0] = float(go_on)
        self._memory.orders[1] = self._factor(step, done)
        self._progress.report(step, self._memory.sums, done, flush=not go_on)
        if not go_on or time.monotonic() - self._saved > self._stretch.save_seconds:
            self.save(step)

    def save(self, step: int) -> None:
        """Writes the checkpoint."""
        stretch = self._stretch
        state = State.of(self._memory, step=step, begun=stretch.begun, sizes=stretch.sizes, plan=stretch.plan)
        save_state(stretch.folder, state)
        self._saved = time.monotonic()

    def _part_done(self, step: int) -> float:
        stretch = self._stretch
        by_steps = (step - stretch.first_step) / stretch.max_steps if stretch.max_steps else 0.0
        seconds = time.monotonic() - self._started
        return max(by_steps, seconds / stretch.max_seconds if stretch.max_seconds else 0.0)

    def _factor(self, step: int, done: float) -> float:
        warm = min(1.0, (self._stretch.num_updates(step) + 1) / WARM_UP_STEPS)
        return warm * (1 - done) if self._stretch.decays else warm

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
