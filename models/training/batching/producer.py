"""Produces batches ahead of time in worker processes, in order of steps."""

import signal
from collections.abc import Iterator
from itertools import count, cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from models.training.batching.packing import Batch
from models.training.batching.vocabulary import load_vocabulary
from models.training.learning.plan import Plan, draw_batch

AHEAD = 4
"""Batches that a process may queue."""


class Producer:
    """Produces one worker's batches."""

    def __init__(self, folder: Path, plan: Plan, *, first_step: int, worker: int, num_processes: int) -> None:
        """
        Args:
            folder: of the training, for its vocabulary.
            plan: the training plan.
            first_step: the first batch's step.
            worker: the worker's index.
            num_processes: processes that alternate.
        """
        context = get_context("forkserver")
        self._queues: list[Any] = [context.Queue(AHEAD) for _ in range(num_processes)]
        self._processes = [
            context.Process(
                target=_produce, args=(queue, folder, plan, first_step + index, num_processes, worker), daemon=True
            )
            for index, queue in enumerate(self._queues)
        ]
        for process in self._processes:
            process.start()

    def batches(self) -> Iterator[Batch]:
        """Yields batches step by step, without end."""
        for queue in cycle(self._queues):
            yield queue.get()

    def close(self) -> None:
        """Stops the processes."""
        for process in self._processes:
            process.terminate()


def _produce(queue: Any, folder: Path, plan: Plan, first_step: int, stride: int, worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    vocabulary = load_vocabulary(folder)
    for step in count(first_step, stride):
        queue.put(draw_batch(plan, vocabulary, step, worker))
