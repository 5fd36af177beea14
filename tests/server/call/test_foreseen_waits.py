"""Waits as a front end foresees them from what the engine tells after its steps, on a clock of its own."""

import random

import pytest

from glimpse.server.call.wait_estimator import WaitEstimator
from tests.engine.core.timed_core import TimedCore, text


class TimedFrontEnd:
    """Requests of one client, counted as they come and as their first tokens do."""

    def __init__(self) -> None:
        self.timed = TimedCore(max_slowdown=4)
        self._estimator = WaitEstimator()
        self._waiting: dict[str, int] = {}

    @property
    def wait_seconds(self) -> float:
        return self._estimator.wait_seconds("client")

    def submit(self, name: str, num_tokens: int, max_tokens: int) -> None:
        expected = self._estimator.expected_tokens(
            num_prompt_tokens=num_tokens, num_completions=1, max_tokens=max_tokens
        )
        self._waiting[name] = round(expected)
        self._estimator.add_waiting("client", self._waiting[name])
        self.timed.submit(text(name, num_tokens, max_tokens, client="client"))

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            step = self.timed.core.step()
            for event in step.events:
                self.timed.times[event.request_id].append(self.timed.runner.now)
                self._estimator.add_waiting("client", -self._waiting.pop(event.request_id, 0))
            self._estimator.engine_stepped(step.stats)

    def run_until_none_waits(self) -> float:
        """Returns the seconds until all requests have their first tokens."""
        begun = self.timed.runner.now
        while self._waiting:
            self.run(1)
        return self.timed.runner.now - begun


@pytest.fixture
def full_front_end() -> TimedFrontEnd:
    """All places are taken by long answers. A short request waits for one of them."""
    front_end, draw = TimedFrontEnd(), random.Random(0)
    for number in range(12):
        front_end.submit(f"measured {number}", draw.randint(10, 900), max_tokens=4)
        front_end.run(6)
    for number in range(128):
        front_end.submit(f"long {number}", 20, max_tokens=1000)
    front_end.run_until_none_waits()
    front_end.submit("short", 9, max_tokens=40)
    front_end.run(1)
    return front_end


def test_all_that_wait_for_a_place_wait_for_the_same_one(full_front_end: TimedFrontEnd) -> None:
    foreseen = [full_front_end.wait_seconds]
    for number in range(4):
        full_front_end.submit(f"other {number}", 1000, max_tokens=40)
        foreseen.append(full_front_end.wait_seconds)
    full_front_end.run(1)
    foreseen.append(full_front_end.wait_seconds)
    seconds = full_front_end.run_until_none_waits()
    assert seconds > 25
    assert foreseen == pytest.approx([seconds] * len(foreseen), rel=0.15)


def test_the_wait_for_a_place_ends_with_it(full_front_end: TimedFrontEnd) -> None:
    assert full_front_end.wait_seconds > 25
    for number in range(64, 128):
        full_front_end.timed.core.cancel(f"long {number}")
    full_front_end.run_until_none_waits()
    assert full_front_end.wait_seconds == 0.0
    full_front_end.submit("next", 1000, max_tokens=40)
    foreseen = full_front_end.wait_seconds
    assert foreseen == pytest.approx(full_front_end.run_until_none_waits(), rel=0.5)


@pytest.mark.parametrize(("num_tokens", "max_tokens"), [(14, 8), (14, 1), (3, 2), (50, 20), (200, 30), (1000, 10)])
def test_a_flood_is_foreseen_after_eight_prompts_of_one_length(num_tokens: int, max_tokens: int) -> None:
    front_end, draw = TimedFrontEnd(), random.Random(0)
    for number in range(8):
        front_end.submit(f"measured {number}", num_tokens, max_tokens)
        front_end.run(max_tokens + 1)
    for number in range(60):
        front_end.submit(f"flood {number}", draw.randint(10, 200), max_tokens=draw.randint(8, 40))
    front_end.run(1)
    foreseen = front_end.wait_seconds
    assert foreseen == pytest.approx(front_end.run_until_none_waits(), rel=0.35)
