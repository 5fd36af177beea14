"""The host's share of a step, measured without a model."""

import pytest

from bench.engine.host_time import draw_nothing, measure
from glimpse.engine.worker.tensors.draws import DrawTokens


@pytest.mark.parametrize(("ahead", "draw_tokens"), [(False, None), (True, None), (True, draw_nothing)])
def test_every_part_of_a_step_is_counted_once(ahead: bool, draw_tokens: DrawTokens | None) -> None:
    times = measure(3, ahead=ahead, temperature=1.0, context=40, num_steps=4, draw_tokens=draw_tokens)
    assert len(times) == 4
    for each in times:
        parts = (each.scheduling, each.launch, each.result, each.message)
        assert min(parts) > 0
        assert each.total == sum(parts)
