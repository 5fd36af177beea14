"""Estimates how long a new request would wait for the engine, and for its first token. Plain arithmetic: times are
passed in.

Clients share the engine equally. So a request waits for what its own client has before it, and for as much of each
other client's, if there is that much.

Waiting work is counted in tokens: those of the prompt and those that are expected to be generated. The engine's rate
is measured while requests wait. The time to a first token follows from that of recent ones: by the tokens to compute
and to encode, the prompt's own and those before it, and the sequences that run beside it.
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
_FADING = 0.95
"""Weight of a prompt's time in a fit, relative to the next one's."""
_RIDGE = 1e-6
"""Keeps apart what the times so far do not tell apart."""
_NUM_RECENT = 15
"""Times of which a median is taken: the first ones after a start take much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    """What the engine has to do for a prompt."""

    num_tokens: int
    """Tokens to compute."""
    num_media_tokens: int
    """Tokens of its media to encode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """A prompt that the engine has."""

    client: str
    size: PromptSize
    num_running: int
    """Sequences that ran when it was submitted."""
    before: tuple[float, float]
    """Tokens to compute, and those of media to encode, before its own."""
    begun: float
    seconds: float
    """The expected time to its first token."""

    def share_left(self, now: float) -> float:
        """Returns the share of it that is not done yet."""
        return max(1 - (now - self.begun) / self.seconds, 0.0) if self.seconds else 1.0


class WaitEstimator:
    """The waiting work of each client, the prompts that are computed, and what recent ones took."""

    def __init__(self) -> None:
        self._waiting_tokens = Counter[str]()  # by client; no zeros
        self._others: Mapping[str, int] = {}
        self._tokens = 0.0  # computed while requests waited; recent ones count more
        self._seconds = 0.0
        self._completion_tokens = float(_INITIAL_COMPLETION_TOKENS)
        self._first_tokens = _Fit(5)
        self._preparation_seconds = {has_media: deque[float](maxlen=_NUM_RECENT) for has_media in (False, True)}
        self._prompts: dict[Hashable, _Prompt] = {}  # without a first token yet

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

    def begin_prompt(self, prompt: Hashable, client: str, size: PromptSize, *, num_running: int, now: float) -> None:
        """Notes that the engine gets a prompt, beside sequences that run. `end_prompt` follows."""
        before = self._prompts_before(client, size, now)
        seconds = self._first_tokens.seconds(_features(size, before, num_running)) or 0.0
        self._prompts[prompt] = _Prompt(
            client=client, size=size, num_running=num_running, before=before, begun=now, seconds=seconds
        )

    def end_prompt(self, prompt: Hashable, now: float, computed: PromptSize | None = None) -> None:
        """Notes that a prompt has its first token, and what was computed of it; None: it needs no token any more."""
        ended = self._prompts.pop(prompt)
        if computed is not None:
            features = _features(computed, ended.before, ended.num_running)
            self._first_tokens.observe(features, now - ended.begun)

    def first_token_seconds(
        self, client: str, size: PromptSize, *, num_running: int, now: float, has_media: bool
    ) -> float | None:
        """Returns how long a request of a client would take to its first token; None before one like it was measured.

        Args:
            client: Who sends it.
            size: The size of its prompt.
            num_running: Sequences that run.
            now: The time.
            has_media: The prompt has media, which are loaded.
        """
        features = _features(size, self._prompts_before(client, size, now), num_running)
        seconds = self._first_tokens.seconds(features)
        if seconds is None or (size.num_media_tokens and not self._first_tokens.knows(_MEDIA)):
            return None
        prepared = self._preparation_seconds[has_media]
        return (median(prepared) if prepared else 0.0) + seconds

    def _prompts_before(self, client: str, size: PromptSize, now: float) -> tuple[float, float]:
        """Returns the tokens to compute, and those of media to encode, before a client's prompt of this size."""
        tokens, media = defaultdict[str, float](float), defaultdict[str, float](float)
        for prompt in self._prompts.values():
            left = prompt.share_left(now)
            tokens[prompt.client] += left * prompt.size.num_tokens
            media[prompt.client] += left * prompt.size.num_media_tokens
        return _work_before(tokens, client, size.num_tokens), _work_before(media, client, size.num_media_tokens)


_MEDIA = 4


def _features(size: PromptSize, before: tuple[float, float], num_running: int) -> npt.NDArray[np.float64]:
    """Returns what the time to a first token is a sum over; index `_MEDIA` is that of media.

    Steps that compute tokens compute those of running sequences too, so each token takes longer beside them.
    """
    num_tokens, num_media_tokens = size.num_tokens + before[0], size.num_media_tokens + before[1]
    return np.array([1, num_tokens, num_running, num_tokens * num_running, num_media_tokens], dtype=np.float64)


def _work_before(waiting: Mapping[str, float], client: str, own: float = 0.0) -> float:
    """Returns the work that is done before a client's next request is, whose own is not counted."""
    work = waiting.get(client, 0)
    return work + sum(min(other, work + own) for name, other in waiting.items() if name != client)


class _Fit:
    """Times as a sum of a time for each feature: least squares of relative errors, none negative.

    Recent times count more, and those that took much too long count little. The median of the last ones relative to the
    fit corrects it.
    """

    def __init__(self, num_features: int) -> None:
        self._products = np.zeros((num_features, num_features))
        self._sums = np.zeros(num_features)
        self._recent = deque[tuple[npt.NDArray[np.float64], float]](maxlen=_NUM_RECENT)

    def observe(self, features: npt.NDArray[np.float64], seconds: float) -> None:
        if seconds <= 0:
            return
        self._products = _FADING * self._products + np.outer(features, features) / seconds**2
        self._sums = _FADING * self._sums + features / seconds
        self._recent.append((features, seconds))

    def seconds(self, features: npt.NDArray[np.float64]) -> float | None:
        """Returns the expected time; None if nothing was observed."""
        if not self._recent:
            return None
        factors = self._factors()
        correction = median(seconds / max(float(factors @ each), 1e-9) for each, seconds in self._recent)
        return float(factors @ features) * correction

    def knows(self, index: int) -> bool:
        """Returns whether a feature was observed."""
        return bool(self._products[index, index])

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
