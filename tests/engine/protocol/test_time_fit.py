"""Times as sums of what each unit of work takes."""

import random

import pytest

from glimpse.engine.protocol.time_fit import TimeFit


@pytest.fixture
def fit() -> TimeFit:
    return TimeFit(3)


def seconds(units: tuple[float, ...]) -> float:
    return 0.02 * units[0] + 0.001 * units[1] + 0.003 * units[2]


def test_no_time_is_known_at_first(fit: TimeFit) -> None:
    assert fit.seconds((1, 2, 3)) is None
    fit.observe((1, 2, 3), 0.0)
    assert fit.seconds((1, 2, 3)) is None


def test_finds_what_each_unit_takes_and_ignores_a_few_late_times(fit: TimeFit) -> None:
    draw = random.Random(0)
    for number in range(200):
        units = (1, draw.randint(1, 2000), draw.choice([0, draw.randint(1, 400)]))
        late = 50 if number % 8 == 0 else 1
        fit.observe(units, late * seconds(units) * draw.uniform(0.95, 1.05))
    for units in ((1, 50, 0), (1, 500, 300), (1, 2000, 50)):
        assert fit.seconds(units) == pytest.approx(seconds(units), rel=0.15)


def test_what_times_do_not_tell_apart_is_ascribed_to_likely_kinds() -> None:
    even, uneven = TimeFit(2), TimeFit(2, least_likely=1)
    for fit in (even, uneven):
        fit.observe((1, 1), 0.1)
    assert even.seconds((1, 51)) == pytest.approx(2.6, rel=0.01)
    assert uneven.seconds((1, 51)) == pytest.approx(0.15, rel=0.05)
    for num_units in (2, 3, 4):
        uneven.observe((1, num_units), 0.01 + 0.09 * num_units)
    assert uneven.seconds((1, 51)) == pytest.approx(4.6, rel=0.05)


def test_many_pieces_of_work_take_their_mean(fit: TimeFit) -> None:
    for number in range(48):
        fit.observe((1, 0, 0), 0.5 if number % 8 == 0 else 0.1)
    assert fit.seconds((1, 0, 0)) == pytest.approx(0.1, rel=0.05)
    assert fit.seconds((1000, 0, 0), num_pieces=1000) == pytest.approx(1000 * 0.15, rel=0.05)


@pytest.mark.parametrize("num_times", [2, 20, 48])
def test_a_single_late_time_is_not_expected_again(fit: TimeFit, num_times: int) -> None:
    fit.observe((1, 0, 0), 0.1)
    fit.observe((1, 0, 0), 30.0)
    for _ in range(num_times - 1):
        fit.observe((1, 0, 0), 0.1)
    assert fit.seconds((1000, 0, 0), num_pieces=1000) == pytest.approx(1000 * 0.1, rel=0.05)


def test_equal_work_is_enough_for_its_like(fit: TimeFit) -> None:
    for _ in range(10):
        fit.observe((1, 100, 7), 0.3)
    assert fit.seconds((1, 100, 7)) == pytest.approx(0.3, rel=0.01)


def test_no_unit_takes_less_than_no_time(fit: TimeFit) -> None:
    for num_tokens in (10, 100, 1000):
        fit.observe((1, num_tokens, 0), 1 / num_tokens)
    for units in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        found = fit.seconds(units)
        assert found is not None
        assert found >= 0.0


def test_a_change_of_speed_is_followed(fit: TimeFit) -> None:
    for took in (0.1, 1.0, 0.1):
        for _ in range(60):
            fit.observe((1, 100, 0), took)
        assert fit.seconds((1, 100, 0)) == pytest.approx(took, rel=0.1)


def test_a_group_keeps_its_times_whatever_others_get(fit: TimeFit) -> None:
    for num_tokens in (10, 20, 30):
        fit.observe((1, num_tokens, 50), seconds((1, num_tokens, 50)), group="rare")
    for number in range(500):
        fit.observe((1, number % 7, 0), seconds((1, number % 7, 0)), group="frequent")
    assert fit.seconds((1, 20, 50)) == pytest.approx(seconds((1, 20, 50)), rel=0.05)
