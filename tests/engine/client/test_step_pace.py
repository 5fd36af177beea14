"""After which time a step is unusual."""

import math

import msgspec

from glimpse.engine.client.step_pace import StepPace
from tests.server.services.step_stats import stats


def test_unusual_is_many_times_the_largest_step_at_the_best_pace() -> None:
    pace = StepPace(max_batch_tokens=2000)
    assert pace.unusual_seconds == math.inf, "nothing is measured"
    pace.add(msgspec.structs.replace(stats(running=1), step_seconds=1.0))
    assert pace.unusual_seconds == math.inf, "nothing was computed"
    pace.add(msgspec.structs.replace(stats(running=1), step_seconds=0.1, num_generated_tokens=1))
    assert pace.unusual_seconds == 10 * 2000 * 0.1
    pace.add(msgspec.structs.replace(stats(running=1), step_seconds=1.0, num_prompt_tokens=500))
    assert pace.unusual_seconds == 10 * 2000 * 0.002
    pace.add(msgspec.structs.replace(stats(running=1), step_seconds=30.0, num_prompt_tokens=500))
    assert pace.unusual_seconds == 10 * 2000 * 0.002, "an unusual step is no measure"
