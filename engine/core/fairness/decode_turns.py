"""Which running sequences decode in a step, while several clients share the engine: a bounded number, in turn.

A newcomer, a client of which nothing or little runs, waits for the running step and for the one that computes its
prompt. Both take longer the more sequences of others they decode. So while there are several clients, a step takes only
as many decodes as keep it within a multiple of what any step costs (reading weights, launching kernels). Where decodes
cost next to nothing beside that, this bounds nothing. Both costs are estimated from recent steps, some of which are
made small for that.

A step that begins a newcomer's prompt has the tightest bound, but never two steps in a row. For some seconds after it,
all steps have a tighter bound, because others are likely to come; each client may still have one decode in each step,
so that the bound holds back only clients with many sequences.

The sequences that a step leaves out decode in the next ones: clients take turns, the requests of a client do, and so do
the completions of a request. With K clients and a step of N decodes, one of S completions of one of the F requests of a
client decodes at least once in ceil(K / N) * F * S steps.

Pure arithmetic and order, no clock.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import TypeVar

from glimpse.engine.core.fairness.flow import Client, Flow
from glimpse.engine.core.prefill_budget import StepWork
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.core.step_curve import StepCurve

_Group = TypeVar("_Group", Client, Flow)

NUM_LEAST = 64
"""Decodes that a step takes in any case: fewer would share its fixed cost badly."""
NUM_LEAST_RECENT = 16
"""Least number for some time after a newcomer."""
STRETCH = 4.0
"""A step with decodes of several clients takes about this multiple of what any step costs. The engine then spends a
quarter of its time on that, which one large step would share among more sequences."""
NEWCOMER_STRETCH = 2.0
"""Factor for a step that begins a newcomer's prompt, and for some time after it."""
NEWCOMER_SECONDS = 10.0
"""How long steps have the tighter bound after a newcomer."""
NUM_SMALL = 4
"""Steps with no more decodes measure what any step costs."""
NUM_LARGE = 16
"""Steps with no fewer decodes measure what each of them costs."""
BACKGROUND_SHARE = 0.1
"""How much longer sequences in the background may make a step with urgent decodes, as a share of it."""
SAMPLE_INTERVAL = 32
"""One of so many steps of several clients is small, to measure, even where there is no bound: costs change."""


class DecodeTurns:
    """Estimates the costs of a step and chooses its decodes."""

    def __init__(self) -> None:
        # The shortest steps count: other processes only ever lengthen one.
        self._steps = StepCurve(rank=0.0, size=lambda num_decodes: num_decodes >= NUM_LARGE)
        self._num_turns = 0
        self._last_turns: dict[Sequence, int] = {}  # positions in the order of decodes: the smallest are next
        self._num_shared = 0
        self._seconds = 0.0  # of all steps so far
        self._recent_until = 0.0  # in these seconds: newcomers are likely before
        # The tighter bound, if it is one. Steps within it say less about costs than the larger ones between them: the
        # first decodes of a step may cost nothing while its weights are read.
        self._recent_limit = 0
        self.begins_newcomer = False
        """The step begins a newcomer's prompt and is kept small for it."""

    @property
    def expects_newcomers(self) -> bool:
        """One came not long ago."""
        return self._seconds < self._recent_until

    def count_seconds(self, seconds: float) -> None:
        """Counts the duration of a step, of whatever kind."""
        self._seconds += seconds

    def observe(self, work: StepWork, seconds: float) -> None:
        """Records how long a step took. Only those that do nothing but decode count."""
        num_decodes = work.num_decodes
        if work.num_prompt_tokens or work.num_media_tokens or not num_decodes:
            return
        if num_decodes <= NUM_SMALL or (num_decodes >= NUM_LARGE and num_decodes > self._recent_limit):
            self._steps.observe(num_decodes, seconds)

    def max_decodes(self, *, least: int = NUM_LEAST, stretch: float = STRETCH) -> int | None:
        """Returns how many decodes a step may take, and no fewer than `least`; None if any number may.

        `stretch`: how long the step may last, as a multiple of what any step costs.
        """
        costs = self._costs()
        if costs is None:
            return None
        fixed_seconds, decode_seconds = costs
        return max(least, int((stretch - 1) * fixed_seconds / decode_seconds))

    def begin_step(self, decoding: Many[Sequence], *, is_shared: bool, has_newcomer: bool = False) -> Many[Sequence]:
        """Returns the sequences that decode in the next step.

        Args:
            decoding: All that could.
            is_shared: There are several clients. With one, all decode.
            has_newcomer: The step begins a newcomer's prompt.
        """
        if has_newcomer:
            self._recent_until = self._seconds + NEWCOMER_SECONDS
        self.begins_newcomer = has_newcomer and not self.begins_newcomer
        if not is_shared or len(decoding) <= NUM_SMALL:
            return decoding
        self._num_shared += 1
        limit = self._limit(decoding)
        return decoding if limit is None or limit >= len(decoding) else self.take(decoding, limit)

    def _limit(self, decoding: Many[Sequence]) -> int | None:
        """Returns how many of these sequences of several clients the next step decodes; None: all."""
        if self._num_shared % SAMPLE_INTERVAL == 1:
            return NUM_SMALL
        if self.begins_newcomer:
            return self.max_decodes(least=1, stretch=NEWCOMER_STRETCH)
        usual = self.max_decodes()
        measures_large = self._num_shared % (2 * SAMPLE_INTERVAL) == SAMPLE_INTERVAL
        if usual is None or not self.expects_newcomers:
            self._recent_limit = 0
            return usual
        if measures_large:
            return usual
        recent = self.max_decodes(least=NUM_LEAST_RECENT, stretch=NEWCOMER_STRETCH) or 0
        limit = max(recent, len({sequence.flow.client for sequence in decoding}))
        self._recent_limit = limit if limit < min(usual, len(decoding)) else 0
        return min(usual, limit)

    def take_beside(self, num_urgent: int, background: Many[Sequence]) -> Many[Sequence]:
        """Returns the sequences in the background that decode in a step with `num_urgent` others: what costs little."""
        costs, most = self._costs(), 1
        if costs is not None:
            fixed_seconds, decode_seconds = costs
            most = int(BACKGROUND_SHARE * (fixed_seconds + num_urgent * decode_seconds) / decode_seconds)
        return self.take(background, most)

    def take(self, decoding: Many[Sequence], num: int) -> Many[Sequence]:
        """Returns the `num` sequences whose turn it is. They go to the end of the order."""
        by_completion = sorted(decoding, key=lambda each: (self._last_turns.get(each, 0), each.priority_key))
        by_flow = _alternate(by_completion, lambda sequence: sequence.flow)
        chosen = _alternate(by_flow, lambda sequence: sequence.flow.client)[:num]
        for sequence in chosen:
            self.append(sequence)
        return chosen

    def append(self, sequence: Sequence) -> None:
        """Puts a sequence, its request and its client at the end of the order, as when its prompt is computed."""
        self._num_turns += 1
        self._last_turns[sequence] = sequence.flow.last_turn = sequence.flow.client.last_turn = self._num_turns

    def forget(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""
        self._last_turns.pop(sequence, None)

    def _costs(self) -> tuple[float, float] | None:
        """Returns the seconds of any step and those of each decode; None if decodes were not seen to cost anything."""
        fixed_seconds, decode_seconds = self._steps.line
        return (fixed_seconds, decode_seconds) if self._steps.num_sizes > 1 and decode_seconds > 0 else None


def _alternate(sequences: Many[Sequence], group_of: Callable[[Sequence], _Group]) -> list[Sequence]:
    """Sorts sequences so that groups take turns, first the one that has waited longest; keeps the order in each."""
    num_before = Counter[_Group]()
    turns: list[tuple[int, int, int]] = []
    for index, sequence in enumerate(sequences):
        group = group_of(sequence)
        turns.append((num_before[group], group.last_turn, index))
        num_before[group] += 1
    return [sequences[index] for *_, index in sorted(turns)]
