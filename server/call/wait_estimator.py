"""Estimates how long a new request would wait for the engine, and for its first token. Plain arithmetic: times are
passed in.

Clients share the engine equally. So a request waits for what its own client has before it, and for as much of each
other client's, if there is that much.

Waiting work is counted in tokens: those of the prompt and those that are expected to be generated. The engine's rate
is measured while requests wait. Prompts that the engine has are counted in seconds. What a prompt takes follows from
recent ones: the time of its own tokens, each beside the sequences that run meanwhile, and that of encoding its media.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

_WINDOW_SECONDS = 10.0
"""Older measurements of the rate count less and less."""
_MEAN_SHARE = 0.05
"""Weight of a request that has ended in the mean over requests."""
_INITIAL_COMPLETION_TOKENS = 128
"""Tokens of a completion, until some have ended."""
_FADING = 0.97
"""Weight of a prompt's time in a fit, relative to the next one's."""
_RIDGE = 1e-6
"""Keeps apart what the times so far do not tell apart."""
_NUM_RECENT = 15
"""Times of which a median is taken: the first ones after a start take much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    """What the time of a prompt depends on."""

    num_tokens: int
    """Tokens to compute."""
    num_media_tokens: int
    """Tokens of its media to encode."""
    num_running: int
    """Sequences that run beside it."""

    @property
    def features(self) -> npt.NDArray[np.float64]:
        """What its computing takes a time for each of; the steps that it takes grow with its tokens."""
        return np.array([1, self.num_tokens, self.num_running, self.num_tokens * self.num_running], dtype=np.float64)

    @property
    def media_features(self) -> npt.NDArray[np.float64]:
        """What the encoder takes a time for each of."""
        return np.array([1, self.num_media_tokens], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """A prompt that the engine has."""

    client: str
    seconds: float
    """What it is expected to take."""
    begun: float


class WaitEstimator:
    """The waiting work of each client, the prompts that are computed, and what recent ones took."""

    def __init__(self) -> None:
        self._waiting_tokens = Counter[str]()  # by client; no zeros
        self._others: Mapping[str, int] = {}
        self._tokens = 0.0  # computed while requests waited; recent ones count more
        self._seconds = 0.0
        self._completion_tokens = float(_INITIAL_COMPLETION_TOKENS)
        self._computing, self._encoding = _Fit(4), _Fit(2)
        self._preparation_seconds = {has_media: deque[float](maxlen=_NUM_RECENT) for has_media in (False, True)}
        self._prompts: dict[Hashable, _Prompt] = {}  # without a first token yet
        self._ended = -math.inf  # when the last prompt ended

    @property
    def tokens_per_second(self) -> float | None:
        """None until it has been measured."""
        return self._tokens / self._seconds if self._seconds and self._tokens else None

    @property
    def waiting_tokens(self) -> Mapping[str, int]:
        """The work of this process that waits, by client."""
        return self._waiting_tokens

    def set_others(self, waiting_tokens: Mapping[str, int]) -> None:
        """Says what waits in other processes that use the same engine, by client."""
        self._others = waiting_tokens

    def expected_tokens(self, *, num_prompt_tokens: int, num_completions: int, max_tokens: int) -> float:
        """Returns the work of a request: its prompt, and completions as long as recent ones."""
        return num_prompt_tokens + num_completions * min(max_tokens, self._completion_tokens)

    def wait_seconds(self, client: str) -> float:
        """Returns how long the next request of a client would wait; 0 while the rate is unknown."""
        rate = self.tokens_per_second
        return 0.0 if rate is None else _work_before(self._waiting_tokens + Counter(self._others), client) / rate

    def add_waiting(self, client: str, num_tokens: float) -> None:
        """Counts work that waits, or with a negative number, that waits no longer."""
        self._waiting_tokens[client] += round(num_tokens)
        if self._waiting_tokens[client] <= 0:
            del self._waiting_tokens[client]

    def observe_rate(self, *, num_tokens: int, seconds: float) -> None:
        """Records how much was computed during an interval in which requests waited."""
        fading = math.exp(-seconds / _WINDOW_SECONDS)
        self._tokens = self._tokens * fading + num_tokens
        self._seconds = self._seconds * fading + seconds

    def observe_completion(self, num_tokens: int) -> None:
        """Records the length of a completion that has ended."""
        self._completion_tokens += _MEAN_SHARE * (num_tokens - self._completion_tokens)

    def observe_preparation(self, seconds: float, *, has_media: bool) -> None:
        """Records how long a request, whose media were loaded, took to reach the engine."""
        self._preparation_seconds[has_media].append(seconds)

    def begin_prompt(self, prompt: Hashable, client: str, size: PromptSize, now: float) -> None:
        """Notes that the engine gets a prompt. `end_prompt` follows."""
        self._prompts[prompt] = _Prompt(client=client, seconds=self._prompt_seconds(size) or 0.0, begun=now)

    def end_prompt(self, prompt: Hashable, now: float) -> float:
        """Notes that a prompt has its first token, or that it needs none. Returns its seconds since the one before."""
        begun = max(self._prompts.pop(prompt).begun, self._ended)
        self._ended = now
        return now - begun

    def observe_prompt(self, size: PromptSize, *, seconds: float, encode_seconds: float) -> None:
        """Records what a prompt took, and how much of it was encoding its media."""
        self._computing.observe(size.features, max(seconds - encode_seconds, 0.0))
        if size.num_media_tokens:
            self._encoding.observe(size.media_features, encode_seconds)

    def first_token_seconds(self, client: str, size: PromptSize, now: float, *, has_media: bool) -> float | None:
        """Returns how long a request of a client would take to its first token; None before one like it was measured.

        Args:
            client: Who sends it.
            size: The size of its prompt.
            now: The time.
            has_media: The prompt has media, which are loaded.
        """
        seconds = self._prompt_seconds(size)
        if seconds is None:
            return None
        prepared = self._preparation_seconds[has_media]
        return (median(prepared) if prepared else 0.0) + self._prompts_before(client, seconds, now) + seconds

    def _prompts_before(self, client: str, seconds: float, now: float) -> float:
        """Returns how long the engine computes others before a prompt that takes so long."""
        if not self._prompts:
            return 0.0
        before = defaultdict[str, float](float)
        for prompt in self._prompts.values():
            before[prompt.client] += prompt.seconds
        computed = now - max(self._ended, min(prompt.begun for prompt in self._prompts.values()))
        return max(_work_before(before, client, seconds) - computed, 0.0)

    def _prompt_seconds(self, size: PromptSize) -> float | None:
        computing = self._computing.seconds(size.features)
        encoding = self._encoding.seconds(size.media_features) if size.num_media_tokens else 0.0
        return None if computing is None or encoding is None else computing + encoding


def _work_before(waiting: Mapping[str, float], client: str, own: float = 0.0) -> float:
    """Returns the work that is done before a client's next request is, whose own is not counted."""
    work = waiting.get(client, 0)
    return work + sum(min(other, work + own) for name, other in waiting.items() if name != client)


class _Fit:
    """Times as a sum of a time for each feature: least squares of relative errors, none negative.

    Recent times count more, and the median of the last ones relative to the fit corrects it: a few may be far off.
    """

    def __init__(self, num_features: int) -> None:
        self._products = np.zeros((num_features, num_features))
        self._sums = np.zeros(num_features)
        self._ratios = deque[float](maxlen=_NUM_RECENT)

    def observe(self, features: npt.NDArray[np.float64], seconds: float) -> None:
        if seconds <= 0:
            return
        fitted = float(self._factors() @ features)
        if fitted > 0:
            self._ratios.append(seconds / fitted)
        self._products = _FADING * self._products + np.outer(features, features) / seconds**2
        self._sums = _FADING * self._sums + features / seconds

    def seconds(self, features: npt.NDArray[np.float64]) -> float | None:
        """Returns the expected time; None if nothing was observed."""
        if not self._sums.any():
            return None
        return float(self._factors() @ features) * (median(self._ratios) if self._ratios else 1.0)

    def _factors(self) -> npt.NDArray[np.float64]:
        factors = np.zeros(len(self._sums))
        kept = np.flatnonzero(np.diag(self._products))
        while kept.size:
            scale = np.sqrt(np.diag(self._products)[kept])
            scaled = self._products[np.ix_(kept, kept)] / np.outer(scale, scale) + _RIDGE * np.eye(kept.size)
            found = np.linalg.solve(scaled, self._sums[kept] / scale) / scale
            if found.min() >= 0:
                factors[kept] = found
                break
            kept = np.delete(kept, found.argmin())
        return factors
