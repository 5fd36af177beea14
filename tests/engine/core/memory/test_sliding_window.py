"""Blocks of sliding layers are given back once they are before the window, and are found until they are reused."""

from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.memory.sliding_window import SlidingWindow
from tests.engine.checking_runner import answers, generate, make_core, run_until_idle
from tests.engine.core.scheduling import sampling

WINDOW = 10
PROMPT = [1 + index % 3 for index in range(61)]


@given(
    num_tokens=st.integers(1, 20), block_size=st.integers(1, 9), num_new=st.integers(1, 20), start=st.integers(0, 50)
)
def test_no_step_needs_more_blocks_than_said(num_tokens: int, block_size: int, num_new: int, start: int) -> None:
    window = SlidingWindow(num_tokens=num_tokens, block_size=block_size)
    most = window.num_blocks(num_new)
    needed = [-(-(first + num_new) // block_size) - window.first_block(first) for first in range(start, start + 40)]
    assert max(needed) <= most
    if start + 1 >= num_tokens:
        assert max(needed) == most


def test_a_sequence_holds_the_blocks_of_its_window_however_long_it_is() -> None:
    core, runner = make_core(num_blocks=40, max_batch_tokens=16, window=WINDOW, num_sliding_blocks=8)
    tables, window = core.scheduler.state.sliding_tables, runner.limits.sliding_window
    assert tables is not None
    assert window is not None
    core.submit(generate("it", PROMPT, sampling=sampling(60)))
    held = list[int]()
    while core.has_work:
        core.step()
        held.append(tables.num_used)
    assert max(held) <= window.num_blocks(16)
    assert max(held[8:]) == window.num_blocks(1)


def test_prefixes_are_found_while_the_window_before_their_end_is_there() -> None:
    core, _ = make_core(num_blocks=60, max_batch_tokens=16, window=WINDOW, num_sliding_blocks=11)
    core.submit(generate("first", PROMPT, sampling=sampling()))
    run_until_idle(core)
    core.submit(generate("again", PROMPT, sampling=sampling()))
    core.submit(generate("branch", [*PROMPT[:30], *[4] * 9], sampling=sampling()))
    steps = run_until_idle(core)
    # Of the prompt's first blocks, sliding layers have lost those that its end has taken.
    assert sum(step.stats.num_cached_tokens for step in steps) == 60


def test_running_sequences_are_preempted_where_windows_run_out() -> None:
    core, _ = make_core(num_blocks=200, max_model_len=100, max_batch_tokens=16, window=WINDOW, num_sliding_blocks=9)
    for index in range(4):
        core.submit(generate(str(index), [index, *PROMPT[:9]], sampling=sampling(40)))
    steps = run_until_idle(core)
    assert sum(step.stats.num_preemptions for step in steps)
    assert {len(tokens) for tokens in answers(steps).values()} == {40}
