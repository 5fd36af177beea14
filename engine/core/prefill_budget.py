"""How many prompt tokens a step may take while sequences decode, so that decoding does not slow down too much.

Pure arithmetic over the durations of recent steps. What a step takes is read off a curve over its tokens, whatever they
are: a decode and a prompt token pass through the same weights. So the curve shows where tokens still come free, because
weights are read anyway, and where each costs time. On a GPU steps that only decode have a curve of their own: they are
replayed, and any other step launches its kernels one by one.
"""

from collections import deque
from dataclasses import dataclass

from glimpse.engine.core.step_curve import WINDOW, StepCurve

NUM_LEAST_TOKENS = 8
"""Prompt tokens that a step with decodes may take in any case on a CPU, so that a prompt never stops entirely."""
NUM_GPU_TOKENS = 512
"""Prompt tokens that such a step may take on a GPU, where one takes about as long as a few hundred: fewer would repeat
the cost of its launches."""
NUM_UNTRIED_TOKENS = 64
"""Prompt tokens in a decoding step until one that only decodes has been measured, at the latest after two steps."""
SAMPLE_INTERVAL = 32
"""After so many steps with prompt tokens one only decodes, to measure that."""
DECODE_INTERVAL = 8
"""One of so many steps in a row that only decode counts: else a moment of other work would be all that does."""
LATE = 1.5
"""A step that takes this multiple of what it should counts as several: decodes may have become slower, too."""
NUM_BRIEF_TOKENS = 128
"""Prompt tokens of a step that is to be short: enough to compute nearly as fast as in a long one."""
DEFAULT_MEDIA_WEIGHT = 2.0
"""Cost of encoding one placeholder token, in prompt tokens, until it has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step computes."""

    num_decodes: int
    """Sequences that decode: each has one token in the step, and its draft tokens."""
    num_prompt_tokens: int
    """All other tokens."""
    num_media_tokens: int
    """Placeholder tokens of the media that are encoded."""


class PrefillBudget:
    """Learns what steps take, and derives the budget."""

    def __init__(self, *, max_slowdown: float, uses_gpu: bool = False) -> None:
        """
        Args:
            max_slowdown: How long a step with decodes may take, as a multiple of a step that only decodes; at least 1.
        """
        self._max_slowdown = max_slowdown
        self._min_tokens = NUM_GPU_TOKENS if uses_gpu else NUM_LEAST_TOKENS
        self._num_since_decode = SAMPLE_INTERVAL if uses_gpu else SAMPLE_INTERVAL - 2  # steps that decoded and did more
        self._num_alike = 0  # steps that only decoded since one that counted
        self._knows_decodes = False
        self._steps = StepCurve()
        self._decodes = StepCurve() if uses_gpu else self._steps
        self._media_costs: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # (placeholder tokens, seconds)

    def num_prompt_tokens(self, num_decodes: int, *, num_expected: int = 0) -> int:
        """Returns how many prompt tokens a step with decodes may take, media converted into them.

        At least `NUM_LEAST_TOKENS` on a CPU and `NUM_GPU_TOKENS` on a GPU.

        Args:
            num_expected: Decodes of later steps that set the pace already now, if they are more.
        """
        if not self._knows_decodes:
            return max(self._min_tokens, NUM_UNTRIED_TOKENS)
        seconds = self._max_slowdown * self._decodes.seconds(max(num_decodes, num_expected))
        return max(self._min_tokens, self._steps.num_tokens_within(seconds) - num_decodes)

    @property
    def is_decode_due(self) -> bool:
        """The next step with decodes takes no prompt tokens, to measure that."""
        return self._num_since_decode >= SAMPLE_INTERVAL

    @property
    def num_brief_tokens(self) -> int:
        """Prompt tokens that a step without decodes may take if it is to be short."""
        return max(self._min_tokens, NUM_BRIEF_TOKENS)

    @property
    def media_weight(self) -> float:
        """Cost of encoding one placeholder token, in prompt tokens."""
        num_tokens, seconds = map(sum, zip(*self._media_costs, strict=True)) if self._media_costs else (0, 0.0)
        _, token_seconds = self._steps.line
        return seconds / num_tokens / token_seconds if seconds and token_seconds else DEFAULT_MEDIA_WEIGHT

    def observe(self, work: StepWork, seconds: float, encode_seconds: float = 0.0) -> None:
        """Records how long a step took, and its encoder."""
        if work.num_media_tokens:
            self._media_costs.append((work.num_media_tokens, encode_seconds))
        num_tokens = work.num_decodes + work.num_prompt_tokens
        if not num_tokens:
            return
        is_alike = not work.num_prompt_tokens and not self._num_since_decode
        self._num_alike = (self._num_alike + 1) % DECODE_INTERVAL if is_alike else 0
        if self._num_alike:
            return
        curve, is_late = self._steps if work.num_prompt_tokens else self._decodes, False
        seconds = max(seconds - encode_seconds, 0.0)
        if work.num_decodes and (work.num_prompt_tokens or self._num_since_decode):
            is_late = num_tokens <= curve.most_tokens and seconds > LATE * curve.seconds(num_tokens)
        curve.observe(num_tokens, seconds)
        if not work.num_prompt_tokens:
            self._knows_decodes |= work.num_decodes > 0
            self._num_since_decode = SAMPLE_INTERVAL - 2 if is_late else 0
        elif work.num_decodes:
            self._num_since_decode += SAMPLE_INTERVAL // 4 if is_late else 1
