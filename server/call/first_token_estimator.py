"""Estimates how long a request takes to its first token. Plain arithmetic: times are passed in.

The engine is taken for one that computes one prompt after the other. What a prompt takes is a least-squares fit to
recent requests: a constant, a time for each token that is computed, and a time for each sequence that runs beside it,
times the median of what recent ones took relative to that. Those whose media are encoded take longer by a time for each
token of the media. A new request waits for the prompts before it.
"""

from collections import deque
from collections.abc import Hashable
from statistics import median

import numpy as np
import numpy.typing as npt

_FADING = 0.9
"""Weight of a request, relative to the next one."""
_SHORT_TOKENS = 64
"""Tokens of a prompt below which the constant is most of the time."""
_RIDGE = 1e-6
"""Keeps apart what the requests so far do not tell apart."""
_NUM_RECENT = 15
"""Requests of which a median is taken: the first ones after a start take much longer."""


class FirstTokenEstimator:
    """What recent requests took, and the prompts that are being computed."""

    def __init__(self) -> None:
        self._products = np.zeros((3, 3))
        self._sums = np.zeros(3)
        self._ratios = deque[float](maxlen=_NUM_RECENT)  # of times to those of the fit
        self._encoder_seconds = deque[float](maxlen=_NUM_RECENT)  # for each token of a medium
        self._preparation_seconds = {has_media: deque[float](maxlen=_NUM_RECENT) for has_media in (False, True)}
        self._prompts: dict[Hashable, float] = {}  # without a first token yet → seconds that they are expected to take
        self._ended = 0.0  # when the last prompt ended

    def begin(self, prompt: Hashable, *, num_tokens: int, num_media_tokens: int, num_running: int) -> None:
        """Notes that a prompt of this size is submitted. `end` follows."""
        seconds = self.prompt_seconds(num_tokens=num_tokens, num_media_tokens=num_media_tokens, num_running=num_running)
        self._prompts[prompt] = seconds or 0.0

    def end(self, prompt: Hashable, now: float) -> float:
        """Notes that a prompt has its first token, or that it needs none. Returns when the one before it ended."""
        before, self._ended = self._ended, now
        self._prompts.pop(prompt, None)
        return before

    def observe(self, *, num_tokens: int, num_media_tokens: int, num_running: int, seconds: float) -> None:
        """Records a prompt.

        Args:
            num_tokens: Tokens that were computed.
            num_media_tokens: Tokens of its media that were encoded.
            num_running: Sequences that ran when it was submitted.
            seconds: From its submission, or the end of the prompt before it, to its first token.
        """
        features = np.array([1.0, num_tokens, num_running])
        if num_media_tokens:
            rest = seconds - self._fitted_seconds(features)
            self._encoder_seconds.append(max(rest, 0) / num_media_tokens)
            return
        # Relative errors count: a short prompt is as important as a long one.
        weight = 1 / (_SHORT_TOKENS + num_tokens) ** 2
        if fitted := float(self._factors @ features):
            self._ratios.append(seconds / fitted)
        self._products = _FADING * self._products + weight * np.outer(features, features)
        self._sums = _FADING * self._sums + weight * seconds * features

    def observe_preparation(self, seconds: float, *, has_media: bool) -> None:
        """Records how long a request, whose media were loaded, took to reach the engine."""
        self._preparation_seconds[has_media].append(seconds)

    def prompt_seconds(self, *, num_tokens: int, num_media_tokens: int, num_running: int) -> float | None:
        """Returns what a prompt is expected to take alone; None before one like it was measured. See `observe`."""
        known = self._encoder_seconds if num_media_tokens else self._sums.any()
        if not known:
            return None
        computing = self._fitted_seconds(np.array([1.0, num_tokens, num_running]))
        return computing + (num_media_tokens * median(self._encoder_seconds) if num_media_tokens else 0)

    def wait_seconds(self, now: float) -> float:
        """Returns how long a request would wait for the prompts that are being computed."""
        return max(sum(self._prompts.values()) - max(now - self._ended, 0), 0) if self._prompts else 0.0

    def preparation_seconds(self, *, has_media: bool) -> float:
        """Returns how long a request, whose media are loaded, takes to reach the engine; 0 if that is unknown."""
        seconds = self._preparation_seconds[has_media]
        return median(seconds) if seconds else 0.0

    def _fitted_seconds(self, features: npt.NDArray[np.float64]) -> float:
        return float(self._factors @ features) * (median(self._ratios) if self._ratios else 1)

    @property
    def _factors(self) -> npt.NDArray[np.float64]:
        """Seconds of the constant, of a token and of a sequence; 0 before a request without media was measured."""
        scale = np.sqrt(np.diag(self._products))
        scale[scale == 0] = 1
        scaled = self._products / np.outer(scale, scale) + _RIDGE * np.eye(3)
        return np.maximum(np.linalg.solve(scaled, self._sums / scale) / scale, 0)
