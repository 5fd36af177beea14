"""Events say how long their request waited in the queue and for the encoder."""

import pytest

from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input
from tests.engine.core.timed_core import DECODE_SECONDS, MEDIA_TOKEN_SECONDS, TimedCore, text


def events_until_idle(timed: TimedCore) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    while timed.core.has_work:
        events += timed.core.step().events
    return events


def test_first_token_says_how_long_the_request_was_queued() -> None:
    timed = TimedCore(max_slowdown=1000, max_sequences=1)
    timed.submit(text("first", 1, max_tokens=4))
    timed.submit(text("second", 1, max_tokens=3))
    first, *_, last = (event for event in events_until_idle(timed) if event.request_id == "second")
    assert first.stats.queue_seconds == last.stats.queue_seconds == pytest.approx(4 * DECODE_SECONDS)


def test_request_that_never_ran_was_not_scheduled() -> None:
    timed = TimedCore(max_slowdown=1000, max_sequences=1)
    timed.submit(text("first", 1, max_tokens=4))
    timed.submit(text("second", 1))
    timed.core.step()
    timed.core.cancel("second")
    (event,) = (event for event in timed.core.step().events if event.request_id == "second")
    assert (event.finish, event.stats.queue_seconds) == (FinishReason.CANCELLED, 0.0)


def test_only_requests_whose_media_are_encoded_wait_for_the_encoder() -> None:
    timed = TimedCore(max_slowdown=1000)
    once = SamplingParams(max_tokens=1)
    timed.core.submit(generate("image", [1] + [PLACEHOLDER] * 8, image_input("a", 1, 8), sampling=once))
    timed.submit(text("text", 4, max_tokens=1))
    timed.core.submit(generate("cached", [2] + [PLACEHOLDER] * 8, image_input("a", 1, 8), sampling=once))
    seconds = {event.request_id: event.stats.encode_seconds for event in events_until_idle(timed)}
    assert seconds == {"image": pytest.approx(8 * MEDIA_TOKEN_SECONDS), "text": 0.0, "cached": 0.0}


def test_admitted_tokens_are_counted_once_cached_or_not() -> None:
    timed = TimedCore(max_slowdown=1000, max_sequences=1)
    timed.submit(text("a", 40, max_tokens=2))
    timed.submit(text("b", 24, max_tokens=1))
    stats = [timed.core.step().stats for _ in range(5)]
    assert [each.num_admitted_tokens for each in stats if each.num_admitted_tokens] == [40, 24]
