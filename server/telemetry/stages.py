"""Measures the stages of a request, for metrics and traces.

A completion waits in the engine's queue, its prompt is computed (media encoded, then prefill), and its tokens are
decoded. A stage becomes a child span of the RPC's span when it has ended.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from glimpse.engine.protocol.messages import RequestStats
from glimpse.media.cache.request_media import MediaUsage
from glimpse.server.telemetry.metrics import Metrics
from glimpse.server.telemetry.timings import FirstTokenTime, Timings

MAX_SPANS = 64
"""Spans of one kind of stage in a request. Further ones are not recorded."""


@dataclass(frozen=True, slots=True)
class _Stage:
    name: str
    began: float
    """Time of `time.monotonic()`."""
    ended: float
    is_cut_short: bool = False


def record_media_stages(usage: MediaUsage) -> None:
    """Records when a request waited for its files and for its decoded media, one span for each."""
    kinds = (("fetch", usage.fetch_waits), ("decode_media", usage.decode_waits))
    _record([_Stage(name, *wait) for name, waits in kinds for wait in waits[:MAX_SPANS]])


def record_prompt_stages(submitted: float, ended: float, stats: RequestStats, completion: int | None = None) -> None:
    """Records the stages from a prompt's submission to its first token or embedding.

    The encoder runs within prefill, in the steps that need its output; its span is at the beginning of prefill's.

    Args:
        submitted: Time of `time.monotonic()`.
        ended: Time of `time.monotonic()`.
        completion: Index of the completion; None for embeddings.
    """
    scheduled = min(submitted + stats.queue_seconds, ended)
    encoded = min(scheduled + stats.encode_seconds, ended)
    encoding = [_Stage("encode", scheduled, encoded)] if stats.encode_seconds else []
    _record([_Stage("queue", submitted, scheduled), _Stage("prefill", scheduled, ended), *encoding], completion)


def _record(stages: Sequence[_Stage], completion: int | None = None) -> None:
    """Records stages that have ended as children of the current span."""
    if not trace.get_current_span().is_recording():
        return
    tracer, origin = trace.get_tracer("glimpse"), time.time() - time.monotonic()
    attributes = {} if completion is None else {"glimpse.completion.index": completion}
    for stage in stages:
        began, ended = (round((origin + seconds) * 1e9) for seconds in (stage.began, max(stage.began, stage.ended)))
        span = tracer.start_span(stage.name, start_time=began, attributes=attributes)
        if stage.is_cut_short:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=ended)


@dataclass(slots=True, kw_only=True)
class _Completion:
    """One completion that is being timed. Times are of `time.monotonic()`."""

    num_prompt_tokens: int
    num_tokens: int = 0
    first_token: float | None = None
    last_token: float = 0.0
    has_ended: bool = False


class RequestTimer:
    """Times the completions of one request."""

    def __init__(self, metrics: Metrics) -> None:
        """The request has arrived now."""
        self._metrics = metrics
        self._arrived = time.monotonic()
        self._submitted = self._arrived
        self._completions: list[_Completion] = []
        self._first: tuple[float, RequestStats] | None = None  # when the first token of all came, and its statistics
        self._first_token_time: FirstTokenTime | None = None
        self._last_token = 0.0

    def submit(self, num_prompt_tokens: Iterable[int], *, num_completions: int) -> None:
        """Records that the prompts, of these lengths, go to the engine, with so many completions of each."""
        self._submitted = time.monotonic()
        self._completions = [
            _Completion(num_prompt_tokens=length) for length in num_prompt_tokens for _ in range(num_completions)
        ]

    def observe_tokens(self, index: int, num_tokens: int, stats: RequestStats) -> None:
        """Records new tokens of the completion with this index. `stats` counts with the first of them."""
        now, completion = time.monotonic(), self._completions[index]
        completion.num_tokens += num_tokens
        if completion.first_token is None:
            completion.first_token = now
            self._first = self._first or (now, stats)
            waited = now - self._submitted
            prefill = max(0.0, waited - stats.queue_seconds)
            self._metrics.first_token(stats, since_arrival=now - self._arrived, prefill=prefill)
            if index < MAX_SPANS:
                record_prompt_stages(self._submitted, now, stats, completion=index)
        else:
            self._metrics.next_tokens(now - completion.last_token)
        completion.last_token = self._last_token = now

    def timings(self, arrived: float, media: MediaUsage | None) -> Timings | None:
        """Returns how long the request took up to its last tokens; None before the first.

        Args:
            arrived: When the request arrived, time of `time.monotonic()`.
            media: How its media were loaded.
        """
        if self._first is None:
            return None
        came, stats = self._first
        if self._first_token_time is None:
            times = (arrived, self._submitted, came)
            self._first_token_time = _first_token_time(times, stats, media or MediaUsage())
        return Timings(first_token=self._first_token_time, decode_seconds=self._last_token - came)

    def finish(self, index: int, reason: str) -> None:
        """Records that a completion is whole, after its last tokens."""
        completion = self._completions[index]
        completion.has_ended = True
        first = completion.last_token if completion.first_token is None else completion.first_token
        self._metrics.completion_finished(
            reason,
            since_arrival=completion.last_token - self._arrived,
            decode=completion.last_token - first,
            num_prompt_tokens=completion.num_prompt_tokens,
            num_tokens=completion.num_tokens,
        )
        self._record(index, _Stage("decode", first, completion.last_token))

    def abort(self, reason: str) -> None:
        """Records that the completions that are not whole never will be. Without effect if there are none."""
        now = time.monotonic()
        for index, completion in enumerate(self._completions):
            if completion.has_ended:
                continue
            completion.has_ended = True
            self._metrics.completion_aborted(reason)
            if completion.first_token is None:
                self._record(index, _Stage("queue_and_prefill", self._submitted, now, is_cut_short=True))
            else:
                self._record(index, _Stage("decode", completion.first_token, now, is_cut_short=True))

    def _record(self, index: int, stage: _Stage) -> None:
        if index < MAX_SPANS:
            _record([stage], index)


def _first_token_time(times: tuple[float, float, float], stats: RequestStats, media: MediaUsage) -> FirstTokenTime:
    """Divides the time until a first token. `times`: of the arrival, the prompt's submission, the token."""
    arrived, submitted, came = times
    fetch = _covered(media.fetch_waits)
    loading = _covered([*media.fetch_waits, *media.decode_waits])
    # The engine's clock may run a little ahead.
    queue = min(stats.queue_seconds, came - submitted)
    encode = min(stats.encode_seconds, came - submitted - queue)
    return FirstTokenTime(
        preparation_seconds=submitted - arrived - loading,
        fetch_seconds=fetch,
        decode_media_seconds=loading - fetch,
        queue_seconds=queue,
        encode_seconds=encode,
        prefill_seconds=came - submitted - queue - encode,
    )


def _covered(waits: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds in which at least one of the waits, each from a begin to an end, was going on."""
    seconds, until = 0.0, 0.0
    for began, ended in sorted(waits):
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return seconds
