"""The loops that measure the machine's limits."""

from collections.abc import Mapping

import numpy as np
import pytest

from glimpse.engine.benchmark.limits import StepLimits, best, measure_limits
from glimpse.engine.benchmark.units.library import (
    FLOAT_UNITS,
    INTEGER_UNITS,
    PATTERNS,
    UNITS,
    Unit,
    load_loops,
    read_rate,
    unit_levels,
    unit_rate,
)
from glimpse.engine.worker.native.library import Level

LEVELS = unit_levels()
needs_loops = pytest.mark.skipif(not LEVELS, reason="this machine cannot build or run the loops")


@needs_loops
@pytest.mark.parametrize(("streams", "ahead"), PATTERNS)
def test_every_byte_is_read(streams: int, ahead: int) -> None:
    words = np.zeros(2 * 4096 // 8 + 4, dtype=np.uint64)
    words = words[-words.ctypes.data % 32 // 8 :][: 2 * 4096 // 8]  # aligned to 32 bytes
    for place in range(words.size):
        words[:] = 0
        words[place] = place + 1
        assert load_loops().units_read(words.ctypes.data, words.nbytes, streams, ahead) == place + 1


@needs_loops
def test_memory_is_read_in_all_threads() -> None:
    assert read_rate(num_threads=2, repeats=1, num_bytes=1 << 20) > 0


@needs_loops
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.level in LEVELS], ids=lambda unit: unit.name)
def test_every_unit_of_this_machine_runs(unit: Unit) -> None:
    assert unit_rate(unit, num_threads=1, repeats=1) > 0


@pytest.mark.parametrize("units", [FLOAT_UNITS, INTEGER_UNITS])
def test_every_level_of_x86_has_units_that_it_is_held_to(units: Mapping[Level, Unit]) -> None:
    assert set(units) == {level for level in Level if level < Level.NEON}
    assert all(unit.level <= level for level, unit in units.items())


@needs_loops
def test_a_level_that_the_machine_lacks_is_refused() -> None:
    lacking = [level for level in Level if level not in LEVELS]
    if not lacking:
        pytest.skip("this machine has every level")
    with pytest.raises(ValueError, match=f"got {lacking[0].name}"):
        measure_limits(num_threads=1, level=lacking[0], repeats=1)


def test_the_best_of_several_measurements_counts() -> None:
    first = StepLimits(read_bytes_per_second=2e9, flops_per_second=3e12, units="FMA")
    second = StepLimits(read_bytes_per_second=1e9, flops_per_second=4e12, units="FMA")
    assert best(first, second) == StepLimits(read_bytes_per_second=2e9, flops_per_second=4e12, units="FMA")
