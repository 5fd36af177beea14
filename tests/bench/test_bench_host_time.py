"""The host's share of a step, measured without a model."""

import pytest

from bench.engine.host_time import measure


@pytest.mark.parametrize("ahead", [False, True])
def test_every_part_of_a_step_is_counted_once(ahead: bool) -> None:
    times = measure(3, ahead=ahead, temperature=1.0, context=40, num_steps=4)
    assert len(times) == 4
    for each in times:
        parts = (each.scheduling, each.launch, each.result, each.message)
        assert min(parts) > 0
        assert each.total == sum(parts)
