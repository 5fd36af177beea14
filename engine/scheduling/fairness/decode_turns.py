"""Which running sequences decode in a step, while several clients share the engine: a bounded number, in turn.

A new client's first token waits for the running step and for its own. Both take longer the more sequences of others
they decode. So while there are several clients, a step takes only as many decodes as keep it within a multiple of what
any step costs (reading weights, launching kernels). Where decodes cost next to nothing beside that, this bounds
nothing. Both costs are estimated from recent steps, some of which are made small for that.

The sequences that a step leaves out decode in the next ones: clients take turns, the requests of a client do, and so do
the completions of a request. With K clients and a step of N decodes, one of S completions of one of the F requests of a
client decodes at least once in ceil(K / N) * F * S steps.

Pure arithmetic and order, no clock.
"""

from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from operator import attrgetter, itemgetter
from typing import TypeVar

from glimpse.engine.scheduling.fairness.flow import Client, Flow
from glimpse.engine.scheduling.prefill_budget import StepWork
from glimpse.engine.scheduling.sequence import Sequence

_Group = TypeVar("_Group", Client, Flow)

NUM_LEAST = 64
"""Decodes that a step takes in any case: fewer would share its fixed cost badly."""
NUM_SMALL = 16
"""The same for a step that begins a newcomer's prompt. Steps with no more decodes measure what any step costs."""
STRETCH = 4.0
"""A step with decodes of several clients takes about this multiple of what any step costs. The engine then spends a
quarter of its time on that, which one large step would share among more sequences."""
NEWCOMER_STRETCH = 2.0
"""The same for a step that begins the prompt of a client of which nothing else runs."""
SAMPLE_INTERVAL = 32
"""One of so many steps of several clients is small, to measure, even where there is no bound: costs change."""
WINDOW = 8
"""Number of recent steps of each size that count."""

_by_turn = attrgetter("last_turn", "priority_key")
_seconds = itemgetter(1)


class DecodeTurns:
    """Estimates the costs of a step and chooses its decodes."""

    def __init__(self) -> None:
        self._small: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # (decodes, seconds)
        self._large: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._num_turns = 0
        self._num_shared = 0

    def observe(self, work: StepWork, seconds: float) -> None:
        """Records how long a step took. Only those that do nothing but decode count."""
        if work.num_prompt_tokens or work.num_media_tokens or not work.num_decodes:
            return
        if work.num_decodes <= NUM_SMALL:
            self._small.append((work.num_decodes, seconds))
        elif work.num_decodes > 2 * NUM_SMALL:
            self._large.append((work.num_decodes, seconds))

    def expected_seconds(self, num_decodes: int) -> float | None:
        """Returns how long a step with only these decodes takes; None if it has not been measured."""
        costs = self._costs()
        return None if costs is None else costs[0] + num_decodes * costs[1]

    def max_decodes(self, *, has_newcomer: bool = False) -> int | None:
        """Returns how many decodes a step may take; None if any number may."""
        costs = self._costs()
        if costs is None:
            return None
        fixed_seconds, decode_seconds = costs
        least, stretch = (NUM_SMALL, NEWCOMER_STRETCH) if has_newcomer else (NUM_LEAST, STRETCH)
        return max(least, int((stretch - 1) * fixed_seconds / decode_seconds))

    def begin_step(
        self, decoding: Many[Sequence], newcomer: Sequence | None = None, *, is_shared: bool
    ) -> Many[Sequence]:
        """Returns the sequences that decode in the next step.

        Args:
            decoding: All that could.
            newcomer: Its prompt begins in the step, and nothing else of its client runs.
            is_shared: There are several clients. With one, all decode.
        """
        if not is_shared or len(decoding) <= NUM_SMALL:
            return decoding
        limit = self.max_decodes(has_newcomer=newcomer is not None)
        self._num_shared += 1
        if self._num_shared % SAMPLE_INTERVAL == 1:
            limit = NUM_SMALL
        return decoding if limit is None or limit >= len(decoding) else self.take(decoding, limit)

    def take(self, decoding: Many[Sequence], num: int) -> Many[Sequence]:
        """Returns the `num` sequences whose turn it is. They go to the end of the order."""
        by_completion = sorted(decoding, key=_by_turn)
        by_flow = _alternate(by_completion, lambda sequence: sequence.flow)
        chosen = _alternate(by_flow, lambda sequence: sequence.flow.client)[:num]
        for sequence in chosen:
            self.append(sequence)
        return chosen

    def append(self, sequence: Sequence) -> None:
        """Puts a sequence, its request and its client at the end of the order, as when its prompt is computed."""
        self._num_turns += 1
        sequence.last_turn = sequence.flow.last_turn = sequence.flow.client.last_turn = self._num_turns

    def _costs(self) -> tuple[float, float] | None:
        """Returns the seconds of any step and those of each decode; None if decodes were not seen to cost anything."""
        if not self._small or not self._large:
            return None
        # The shortest ones: other processes only ever lengthen a step.
        num_small, small_seconds = min(self._small, key=_seconds)
        num_large, large_seconds = min(self._large, key=_seconds)
        decode_seconds = (large_seconds - small_seconds) / (num_large - num_small)
        if decode_seconds <= 0:
            return None
        return max(0.0, small_seconds - num_small * decode_seconds), decode_seconds


def _alternate(sequences: Many[Sequence], group_of: Callable[[Sequence], _Group]) -> list[Sequence]:
    """Sorts sequences so that groups take turns, first the one that has waited longest; keeps the order in each."""
    num_before = Counter[_Group]()
    turns: list[tuple[int, int, int]] = []
    for index, sequence in enumerate(sequences):
        group = group_of(sequence)
        turns.append((num_before[group], group.last_turn, index))
        num_before[group] += 1
    return [sequences[index] for *_, index in sorted(turns)]
