"""How many draft tokens a step verifies, so that speculative decoding pays.

A step with draft tokens takes longer than one without, and brings one more token for each that is accepted. Both are
known from recent tokens and steps: the chance of each draft token, and how much longer steps with draft tokens took.
The step takes the number of draft tokens that brings the most tokens per second, none if that is hardly more.

Pure arithmetic, no clock.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from functools import partial
from itertools import accumulate, takewhile

from glimpse.engine.core.ngram_proposer import ModelProposer, NgramProposer
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.core.step_curve import StepCurve

NUM_FREE_TOKENS = 16
"""Tokens of a step on a CPU that take little longer than one: it reads all weights anyway."""
MIN_CHANCE = 0.15
"""A draft token that is accepted less often is not verified, however little that seems to cost."""
MIN_GAIN = 1.05
"""Tokens per second with draft tokens, as a multiple of those without, below which there are none."""
MAX_NEIGHBOR_SLOWDOWN = 1.15
"""How much longer than without draft tokens a step may take, as a factor, if some of its sequences have none."""
EXPECTED_SLOWDOWN = 0.05
"""What a draft token adds to a step, as a share of its duration without any, until it is measured."""
NUM_NEEDED = 2
"""Steps of a size that must have been measured: a single one may have been delayed by other processes."""
MAX_AGE = 128
"""Steps after which one no longer counts: contexts grow, and a cost that was overestimated is tried again."""


class DraftCosts:
    """How much longer steps take with draft tokens, by the number of sequences that decode in them."""

    def __init__(self) -> None:
        # Over draft tokens. The shortest steps count: other processes only ever lengthen one.
        self._curves = defaultdict[int, StepCurve](partial(StepCurve, rank=0.0, num_needed=NUM_NEEDED, max_age=MAX_AGE))

    def observe(self, *, num_decodes: int, num_draft_tokens: int, seconds: float) -> None:
        """Records how long a step took that only decoded."""
        self._curves[num_decodes].observe(num_draft_tokens, seconds)

    def slowdown(self, num_decodes: int) -> Callable[[int], float]:
        """Returns a function: draft tokens of a step → its duration as a multiple of one without any, at least 1."""
        curve = self._curves[num_decodes]
        plain_seconds, most = curve.seconds(0), curve.most_tokens
        if not plain_seconds or not most:
            return lambda num_draft_tokens: 1.0 + num_draft_tokens * EXPECTED_SLOWDOWN
        # More tokens than were measured cost in proportion.
        return lambda num: 1.0 + (curve.seconds(num) / plain_seconds - 1.0) * max(num / most, 1.0)


class DraftBudget:
    """Proposes draft tokens, and divides those of a step among its sequences."""

    def __init__(
        self, *, max_draft_tokens: int, is_adaptive: bool, uses_mtp: bool = False, max_states: int | None = None
    ) -> None:
        """
        Args:
            max_draft_tokens: The most of a sequence in a step; 0 for none.
            is_adaptive: Only where they are expected to pay.
            uses_mtp: The model proposes them.
            max_states: The most of a step, each of which takes a state; None if no layer keeps any.
        """
        self._max_step_tokens = NUM_FREE_TOKENS if max_states is None else max_states
        self._max_draft_tokens = max_draft_tokens
        self._is_adaptive = is_adaptive
        self._costs = DraftCosts()
        self._uses_mtp = uses_mtp
        self._proposers: dict[Sequence, NgramProposer | ModelProposer] = {}

    def observe(self, *, num_decodes: int, num_draft_tokens: int, seconds: float) -> None:
        """Records how long a step took that only decoded."""
        if self._is_adaptive and num_decodes < NUM_FREE_TOKENS:
            self._costs.observe(num_decodes=num_decodes, num_draft_tokens=num_draft_tokens, seconds=seconds)

    def plan(self, decoding: Many[Sequence]) -> Mapping[Sequence, int]:
        """Returns how many draft tokens to propose for each sequence that decodes in a step; those without are missing.

        A step is no larger than one that reads all weights anyway.
        """
        max_tokens = min(NUM_FREE_TOKENS - len(decoding), self._max_step_tokens)
        if not self._max_draft_tokens or max_tokens < 1:
            return {}
        chances = [self._chances(sequence) for sequence in decoding]
        if self._is_adaptive:
            lengths = best_lengths(chances, max_tokens, self._costs.slowdown(len(decoding)))
        else:
            ends = [min(end, max_tokens) for end in accumulate(map(len, chances))]
            lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        return {sequence: length for sequence, length in zip(decoding, lengths, strict=True) if length}

    def _chances(self, sequence: Sequence) -> list[float]:
        num_wanted = min(self._max_draft_tokens, sequence.request.max_num_tokens - sequence.num_tokens - 1)
        if num_wanted < 1 or not sequence.num_generated:
            return []
        return self._proposer(sequence).chances(sequence.token_ids, num_wanted)

    def propose(self, sequence: Sequence, max_tokens: int) -> tuple[int, ...]:
        """Returns up to `max_tokens` draft tokens for a sequence, up to any end token.

        None of them triggers the sequence's grammar: the tokens after it would be sampled without the grammar.
        """
        if max_tokens < 1:
            return ()
        token_ids = self._proposer(sequence).propose(sequence.token_ids, max_tokens)
        token_ids = tuple(takewhile(lambda token_id: token_id not in sequence.end_token_ids, token_ids))
        return token_ids if sequence.trigger is None else sequence.trigger.before(token_ids)

    def num_to_propose(self, num_decodes: int) -> int:
        """Returns how many draft tokens the model proposes for each sequence of a step, to be verified in the next."""
        return self._max_draft_tokens if self._uses_mtp and num_decodes < NUM_FREE_TOKENS else 0

    def offer(self, sequence: Sequence, token_ids: tuple[int, ...]) -> None:
        """Takes what the model has proposed to follow a sequence."""
        proposer = self._proposer(sequence)
        assert isinstance(proposer, ModelProposer)
        proposer.offer(sequence.token_ids, token_ids)

    def forget(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""
        self._proposers.pop(sequence, None)

    def _proposer(self, sequence: Sequence) -> NgramProposer | ModelProposer:
        if sequence not in self._proposers:
            num_prompt_tokens = sequence.request.num_prompt_tokens
            self._proposers[sequence] = ModelProposer() if self._uses_mtp else NgramProposer(num_prompt_tokens)
        return self._proposers[sequence]


def best_lengths(chances: Many[Many[float]], max_tokens: int, slowdown: Callable[[int], float]) -> list[int]:
    """Returns how many draft tokens of each sequence bring the most tokens per second.

    Args:
        chances: For each sequence that decodes, the probability that each draft token is accepted, descending.
        max_tokens: The most draft tokens of all sequences together.
        slowdown: Number of draft tokens → duration of the step as a multiple of one without.
    """
    best, best_gain = [0] * len(chances), MIN_GAIN
    ranked = sorted(
        ((chance, index) for index, own in enumerate(chances) for chance in own if chance >= MIN_CHANCE), reverse=True
    )
    num_tokens = float(len(chances))
    for num, (chance, _) in enumerate(ranked[:max_tokens], start=1):
        num_tokens += chance
        factor = slowdown(num)
        gain = num_tokens / (len(chances) * factor)
        if gain > best_gain:
            lengths = Counter(index for _, index in ranked[:num])
            if len(lengths) == len(chances) or factor <= MAX_NEIGHBOR_SLOWDOWN:
                best, best_gain = [lengths[index] for index in range(len(chances))], gain
    return best
