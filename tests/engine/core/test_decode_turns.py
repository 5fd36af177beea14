"""Several clients share the decodes of a step: how many there are, and in which turn."""

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass
from math import ceil
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.core.fairness.decode_turns import (
    NEWCOMER_SECONDS,
    NEWCOMER_STRETCH,
    NUM_LEAST,
    NUM_LEAST_RECENT,
    NUM_SMALL,
    SAMPLE_INTERVAL,
    STRETCH,
    DecodeTurns,
)
from glimpse.engine.core.fairness.flow import Client, Flow
from glimpse.engine.core.prefill_budget import StepWork
from glimpse.engine.core.request import ModelSpec, make_request
from glimpse.engine.core.sequence import Sequence
from tests.engine.core.timed_core import DECODE_SECONDS, TimedCore, TimedRunner, text


def sequences_of(clients: Many[Many[int]]) -> list[Sequence]:
    """Returns decoding sequences: for each client, the number of completions of each of its requests."""
    sequences: list[Sequence] = []
    for each in clients:
        client = Client()
        for num_completions in each:
            flow = Flow(client=client)
            sequences += [a_sequence(len(sequences) + index, flow) for index in range(num_completions)]
    return sequences


def a_sequence(number: int, flow: Flow) -> Sequence:
    model = ModelSpec(vocab_size=8, encoder_row_width=2, eos_token_ids=())
    return Sequence(
        sequence_id=number, request=make_request(text(str(number), 1), max_model_len=100, model=model), flow=flow
    )


def decodes(num: int, seconds: float) -> tuple[StepWork, float]:
    return StepWork(num_decodes=num, num_prompt_tokens=0, num_media_tokens=0), seconds


def turns_after(*steps: tuple[StepWork, float]) -> DecodeTurns:
    turns = DecodeTurns()
    for work, seconds in steps:
        turns.observe(work, seconds)
    return turns


NUM_BOUNDED = int((STRETCH - 1) * 32)
"""The bound if any step costs as much as 32 decodes."""


@pytest.mark.parametrize(
    ("steps", "num_decodes"),
    [
        pytest.param([], None, id="nothing measured"),
        pytest.param([decodes(4, 1.0)], None, id="no large step measured"),
        pytest.param([decodes(100, 1.0)], None, id="no small step measured"),
        pytest.param([decodes(4, 9.0), decodes(36, 17.0)], NUM_BOUNDED, id="8 s, and 0.25 s each"),
        pytest.param([decodes(4, 0.5), decodes(104, 10.5)], NUM_LEAST, id="0.1 s, and 0.1 s each"),
        pytest.param([decodes(4, 1.0), decodes(104, 1.0)], None, id="decodes cost nothing"),
        pytest.param([decodes(4, 0.2), decodes(104, 10.4)], NUM_LEAST, id="nothing but decodes costs anything"),
        pytest.param([*[decodes(4, 9.0)] * 5, decodes(4, 50.0), decodes(36, 17.0)], NUM_BOUNDED, id="an outlier"),
        pytest.param([decodes(4, 9.0), decodes(36, 17.0), decodes(10, 99.0)], NUM_BOUNDED, id="neither size"),
        pytest.param(
            [
                decodes(4, 9.0),
                decodes(36, 17.0),
                (StepWork(num_decodes=110, num_prompt_tokens=1, num_media_tokens=0), 99.0),
                (StepWork(num_decodes=110, num_prompt_tokens=0, num_media_tokens=9), 99.0),
            ],
            NUM_BOUNDED,
            id="only decodes count",
        ),
    ],
)
def test_bound_follows_from_recent_steps(steps: Many[tuple[StepWork, float]], num_decodes: int | None):
    assert turns_after(*steps).max_decodes() == num_decodes


def test_one_client_is_not_bounded():
    turns, decoding = turns_after(decodes(4, 0.5), decodes(104, 10.5)), sequences_of([[1] * 100])
    assert all(turns.begin_step(decoding, is_shared=False) == decoding for _ in range(100))


def costly(num: int) -> tuple[StepWork, float]:
    """A step that costs as much as 32 decodes, and its decodes."""
    return decodes(num, (32 + num) * 2**-14)


CHEAP_STEP = (decodes(4, 0.5), decodes(104, 10.5))
"""0.1 s, and 0.1 s for each decode."""
NUM_RECENT = int((NEWCOMER_STRETCH - 1) * 32)


def test_some_steps_are_small_to_measure():
    turns, decoding = turns_after(costly(4), costly(104)), sequences_of([[100], [100]])
    sizes = Counter(len(turns.begin_step(decoding, is_shared=True)) for _ in range(10 * SAMPLE_INTERVAL))
    assert sizes == {NUM_SMALL: 10, NUM_BOUNDED: 10 * (SAMPLE_INTERVAL - 1)}


def test_steps_are_smaller_for_some_seconds_after_a_newcomer():
    turns, decoding = turns_after(costly(4), costly(104)), sequences_of([[100], [100]])
    turns.begin_step(decoding, is_shared=True, has_newcomer=True)
    sizes = Counter[int]()
    for _ in range(10 * SAMPLE_INTERVAL):
        size = len(turns.begin_step(decoding, is_shared=True))
        turns.observe(*(costly(size) if size != NUM_RECENT else decodes(size, 0.0)))
        sizes[size] += 1
    assert sizes == {NUM_SMALL: 10, NUM_BOUNDED: 5, NUM_RECENT: 10 * (SAMPLE_INTERVAL - 1) - 5}, "some measure"
    turns.count_seconds(NEWCOMER_SECONDS)
    assert len(turns.begin_step(decoding, is_shared=True)) == NUM_BOUNDED


def test_small_steps_after_a_newcomer_still_decode_one_sequence_of_each_client():
    turns, decoding = turns_after(*CHEAP_STEP), sequences_of([[100], *[[1]] * 40])
    turns.begin_step(decoding, is_shared=True, has_newcomer=True)
    assert len(turns.begin_step(decoding[:120], is_shared=True)) == 21, "of each client of these"
    assert len(turns.begin_step(decoding[:105], is_shared=True)) == NUM_LEAST_RECENT


def test_every_second_step_at_most_is_kept_small_for_newcomers():
    turns, decoding = turns_after(*CHEAP_STEP), sequences_of([[100], [100]])
    turns.begin_step(decoding, is_shared=True)
    sizes = [len(turns.begin_step(decoding, is_shared=True, has_newcomer=True)) for _ in range(6)]
    assert sizes == [1, NUM_LEAST_RECENT] * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What some steps brought to sequences."""

    longest: dict[int, int]
    """Sequence id → the most steps from one decode to the next."""
    tokens: Counter[Client]


def run(decoding: Many[Sequence], num_decodes: int, num_steps: int) -> Waits:
    turns, last = DecodeTurns(), dict.fromkeys((each.sequence_id for each in decoding), 0)
    longest = dict(last)
    tokens = Counter[Client]()
    for step in range(1, num_steps + 1):
        for sequence in turns.take(decoding, num_decodes):
            tokens[sequence.flow.client] += 1
            last[sequence.sequence_id] = step
        longest = {each: max(longest[each], step - last[each]) for each in last}
    return Waits(longest=longest, tokens=tokens)


@settings(max_examples=30)
@given(
    clients=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=2, max_size=5),
    num_decodes=st.integers(1, 20),
)
def test_no_sequence_waits_longer_than_its_turns(clients: list[list[int]], num_decodes: int):
    decoding = sequences_of(clients)
    waits = run(decoding, num_decodes, 200)
    rounds = ceil(len(clients) / num_decodes)
    for sequence in decoding:
        flow = sequence.flow
        num_flows = len({each.flow for each in decoding if each.flow.client is flow.client})
        num_completions = sum(each.flow is flow for each in decoding)
        assert waits.longest[sequence.sequence_id] <= rounds * num_flows * num_completions


@settings(max_examples=30)
@given(
    clients=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=2, max_size=5),
    num_decodes=st.integers(1, 20),
)
def test_clients_get_equal_shares_or_all_that_they_want(clients: list[list[int]], num_decodes: int):
    decoding, num_steps = sequences_of(clients), 200
    tokens = run(decoding, num_decodes, num_steps).tokens
    most = max(tokens.values())
    for client, own in tokens.items():
        num_wanted = num_steps * sum(each.flow.client is client for each in decoding)
        assert own == num_wanted or own >= most - 1
    assert sum(tokens.values()) == num_steps * min(num_decodes, len(decoding))


def flooded_core(*clients: str, decode_seconds: float = DECODE_SECONDS) -> TimedCore:
    """Returns a core with 240 running answers, of these clients in turn; none without clients."""
    station = TimedCore(max_slowdown=2.35, max_sequences=256, runner=TimedRunner(decode_seconds=decode_seconds))
    for index in range(240 if clients else 0):
        station.submit(text(f"flood {index}", 3, client=clients[index % len(clients)]))
    station.run(300)
    return station


def test_newcomer_does_not_wait_for_large_steps():
    station = flooded_core("a", "b")
    for index in range(10):
        station.submit(text(f"other {index}", 20, max_tokens=2, client="c"))
        assert station.run_until_first_token(f"other {index}") <= 2 * DECODE_SECONDS
        station.run(3)


def test_newcomer_waits_no_longer_than_twice_its_quiet_time_behind_small_steps():
    # As a small model on a CPU: any step costs 1 ms, and each token 0.5 ms.
    alone, station = (flooded_core(*clients, decode_seconds=0.002) for clients in ((), ("a", "b")))
    alone.submit(text("other", 20, max_tokens=2, client="c"))
    quiet_seconds = alone.run_until_first_token("other")
    seconds: list[float] = []
    for index in range(21):
        station.run(10)
        arrival = station.runner.now
        station.run(1)  # it arrives as this step begins
        station.submit(text(f"other {index}", 20, max_tokens=2, client="c"))
        seconds.append(station.run_until_first_token(f"other {index}") + station.times[f"other {index}"][0] - arrival)
    assert median(seconds) <= 2 * quiet_seconds
    assert max(seconds) <= 4 * quiet_seconds


def test_newcomers_without_end_leave_others_decoding():
    station = flooded_core("a", "b", decode_seconds=0.002)
    num_before = {name: len(times) for name, times in station.times.items()}
    for index in range(1500):
        station.submit(text(f"other {index}", 20, max_tokens=1, client=f"c{index}"))
        station.run(1)
    assert all(len(station.times[name]) > num for name, num in num_before.items()), "each of 240 has more tokens"
    assert all(len(station.times[f"other {index}"]) == 2 for index in range(1490)), "and each newcomer its own"


def test_step_for_a_newcomer_takes_no_prompts_of_others():
    station = flooded_core("a", "b")
    station.submit(text("flood of prompts", 7000, client="a"))
    station.run(2)
    station.submit(text("other", 20, max_tokens=2, client="c"))
    station.run(1)
    lengths = Counter(len(chunk.token_ids) for chunk in station.runner.plans[-1].chunks)
    assert {length for length in lengths if length > 1} == {20}
    station.run(1)
    assert max(len(chunk.token_ids) for chunk in station.runner.plans[-1].chunks) > 1, "they go on in the next"


def test_prompts_of_others_are_short_for_some_seconds_after_a_newcomer():
    station = TimedCore(max_slowdown=2.35)
    for index in range(200):
        station.submit(text(f"flood {index}", 7000, max_tokens=1, client="a"))

    def largest(num_steps: int) -> int:
        station.run(num_steps)
        return max(plan.num_tokens for plan in station.runner.plans[-num_steps:])

    assert largest(4) == 2048
    station.submit(text("long", 1500, max_tokens=1, client="b"))
    assert largest(1) == 1500, "all of a newcomer's prompt, and nothing else"
    assert largest(20) == 128
    begun = station.runner.now
    station.submit(text("short", 20, max_tokens=1, client="c"))
    assert station.run_until_first_token("short") < 1.5 * DECODE_SECONDS
    while station.runner.now < begun + NEWCOMER_SECONDS:
        station.run(1)
    assert largest(2) == 2048


def test_bound_costs_others_a_fifth_at_most():
    def tokens_per_second(station: TimedCore) -> float:
        begun, num_before = station.runner.now, sum(map(len, station.times.values()))
        station.run(200)
        return (sum(map(len, station.times.values())) - num_before) / (station.runner.now - begun)

    assert tokens_per_second(flooded_core("a", "b")) >= 0.8 * tokens_per_second(flooded_core("a"))
