"""Speculative decoding that adapts: draft tokens where they pay, none where they do not."""

from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.draft_budget import (
    EXPECTED_SLOWDOWN,
    MAX_AGE,
    MAX_NEIGHBOR_SLOWDOWN,
    MIN_CHANCE,
    MIN_GAIN,
    NUM_NEEDED,
    DraftCosts,
    best_lengths,
)
from glimpse.engine.core.ngram_proposer import Acceptance
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import CheckingRunner, answers, generate, make_core, run_until_idle

rates = st.lists(st.floats(0.0, 1.0), max_size=4)


def chances_of(rates: Sequence[float]) -> list[float]:
    """Returns the products of the first 1, 2, … rates."""
    return list(accumulate(rates, mul))


@given(all_rates=st.lists(rates, min_size=1, max_size=3), max_tokens=st.integers(0, 8), cost=st.floats(0.0, 0.018))
def test_no_other_lengths_bring_more_tokens_per_second(all_rates: list[list[float]], max_tokens: int, cost: float):
    chances = [chances_of(own) for own in all_rates]

    def gain(lengths: Sequence[int]) -> float:
        num_tokens = len(chances) + sum(sum(own[:length]) for own, length in zip(chances, lengths, strict=True))
        return num_tokens / len(chances) / (1 + cost * sum(lengths))

    useful = [sum(chance >= MIN_CHANCE for chance in own) for own in chances]
    lengths = best_lengths(chances, max_tokens, lambda num: 1 + cost * num)
    assert sum(lengths) <= max_tokens
    assert all(length <= most for length, most in zip(lengths, useful, strict=True))
    others = [each for each in product(*(range(most + 1) for most in useful)) if sum(each) <= max_tokens]
    most_gain = max(map(gain, others))
    assert gain(lengths) == pytest.approx(most_gain if most_gain > MIN_GAIN else 1.0, rel=1e-9)


def test_tokens_that_cost_more_than_they_bring_are_not_verified():
    assert best_lengths([[0.9, 0.8]], 8, lambda num: 1 + 0.1 * num) == [2]
    assert best_lengths([[0.9, 0.8]], 8, lambda num: 1 + 0.85 * num) == [0]
    assert best_lengths([[0.5, 0.1]], 8, lambda _num: 1.0) == [1]  # 0.1 is less than MIN_CHANCE
    assert best_lengths([[]], 8, lambda _num: 1.0) == [0]


def test_a_sequence_is_hardly_slowed_down_by_draft_tokens_of_others():
    assert best_lengths([[0.9] * 7, []], 14, lambda num: 1 + 0.05 * num) == [3, 0]
    assert best_lengths([[0.9] * 7, [0.9] * 7], 14, lambda num: 1 + 0.05 * num) == [7, 7]
    assert 1 + 0.05 * 3 <= MAX_NEIGHBOR_SLOWDOWN < 1 + 0.05 * 4


def test_without_draft_tokens_steps_do_not_change_while_nothing_repeats():
    assert not any(num_drafted(run_script(range(100, 150))))


class TestDraftCosts:
    def slowdown(self, costs: DraftCosts, num_draft_tokens: int, num_decodes: int = 1) -> float:
        return costs.slowdown(num_decodes)(num_draft_tokens)

    def observe(self, costs: DraftCosts, num_draft_tokens: int, seconds: float, times: int = NUM_NEEDED) -> None:
        for _ in range(times):
            costs.observe(num_decodes=1, num_draft_tokens=num_draft_tokens, seconds=seconds)

    def test_is_expected_until_it_is_measured(self):
        costs = DraftCosts()
        assert self.slowdown(costs, 3) == 1 + 3 * EXPECTED_SLOWDOWN
        self.observe(costs, 0, 1.0)
        self.observe(costs, 3, 9.0, times=NUM_NEEDED - 1)
        assert self.slowdown(costs, 3) == 1 + 3 * EXPECTED_SLOWDOWN
        self.observe(costs, 3, 1.6)
        assert self.slowdown(costs, 3) == pytest.approx(1.6)
        assert self.slowdown(costs, 3, num_decodes=2) == 1 + 3 * EXPECTED_SLOWDOWN

    def test_of_another_size_is_between_those_of_its_neighbors_and_grows_beyond_them(self):
        costs = DraftCosts()
        self.observe(costs, 0, 1.0)
        self.observe(costs, 1, 1.5)
        self.observe(costs, 7, 1.7)
        assert [round(self.slowdown(costs, num), 2) for num in (1, 2, 3, 4, 7, 15)] == [1.5, 1.53, 1.57, 1.6, 1.7, 2.5]

    def test_ignores_delayed_steps_and_is_at_least_one(self):
        costs = DraftCosts()
        self.observe(costs, 0, 1.0)
        self.observe(costs, 0, 9.0)
        self.observe(costs, 2, 9.0)
        self.observe(costs, 2, 1.2)
        assert self.slowdown(costs, 2) == pytest.approx(1.2)
        self.observe(costs, 2, 0.5)
        assert self.slowdown(costs, 2) == 1.0

    def test_is_forgotten_after_a_while(self):
        costs = DraftCosts()
        self.observe(costs, 1, 9.0)
        self.observe(costs, 0, 1.0, times=MAX_AGE - NUM_NEEDED)
        assert self.slowdown(costs, 1) == pytest.approx(9.0)
        self.observe(costs, 0, 1.0)
        assert self.slowdown(costs, 1) == 1 + EXPECTED_SLOWDOWN


def run_script(script: Sequence[int], *, seconds_per_token: float = 0.0) -> CheckingRunner:
    """Runs a request whose answer is the script, with adaptive drafts; a step takes 1 s and more for each token."""
    core, runner = make_core(num_blocks=200, max_batch_tokens=64, max_draft_tokens=7, adaptive_drafts=True)
    runner.script, runner.seconds, runner.seconds_per_token = list(script), 1.0, seconds_per_token
    core.submit(generate("r", [1, 2], sampling=SamplingParams(max_tokens=len(script), ignore_eos=True)))
    assert answers(run_until_idle(core)) == {"r": list(script)}
    return runner


def num_drafted(runner: CheckingRunner) -> list[int]:
    return [chunk.num_draft_tokens for plan in runner.plans for chunk in plan.chunks]


PASSAGE = [3, 4, 5, 6]
BROKEN = [token_id for index in range(60) for token_id in (3, 4, 5, 100 + index)]
"""What follows 3, 4, 5 is never what followed before."""


def test_a_repeating_answer_gets_longer_drafts_and_takes_fewer_steps():
    lengths = num_drafted(run_script(PASSAGE * 40))
    assert len(lengths) < 160 / 4
    drafts = [length for length in lengths if length]
    assert drafts[0] < 7 == drafts[2]


def test_an_answer_that_only_seems_to_repeat_gets_few_drafts():
    lengths = num_drafted(run_script(BROKEN))
    assert 0 < sum(map(bool, lengths)) <= 10
    assert not any(lengths[80:])


def test_drafts_come_back_when_the_answer_repeats_again():
    lengths = num_drafted(run_script([*BROKEN, *PASSAGE * 20]))
    assert not any(lengths[80:230])
    assert max(lengths[230:]) == 7


def test_drafts_that_cost_too_much_stop_and_are_tried_again():
    lengths = num_drafted(run_script(PASSAGE * 100, seconds_per_token=20.0))
    drafted = [index for index, length in enumerate(lengths) if length]
    # The duration of a plain step is known from two of them; drafts of each size are then measured twice.
    assert len(drafted) <= 16
    assert max(drafted) >= MAX_AGE


@given(outcomes=st.lists(st.sampled_from([True, False, None]), max_size=80), num_tokens=st.integers(0, 7))
def test_chances_are_probabilities_that_fall(outcomes: list[bool | None], num_tokens: int):
    acceptance = Acceptance()
    for outcome in outcomes:
        acceptance.record(outcome)
    chances = acceptance.chances(num_tokens)
    assert len(chances) == num_tokens
    assert all(0 < chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True)
