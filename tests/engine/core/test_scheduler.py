"""Which sequences run in a step, with how many tokens, and which are preempted."""

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.checking_runner import LIMITS, PLACEHOLDER, generate, image_input, make_core, run_until_idle
from tests.engine.core.scheduling import shapes, submit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 3}, "max_model_len: expected at most 12 tokens"),
        ({"max_batch_tokens": 0}, "max_batch_tokens: expected at least 1, got 0"),
        ({"max_sequences": 0}, "max_sequences: expected at least 1, got 0"),
    ],
)
def test_refuses_limits_under_which_a_sequence_waits_forever(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        replace(LIMITS, **changes)


def test_long_prompt_is_chunked_and_sampled_after_the_last_chunk():
    core, runner = make_core(max_batch_tokens=8)
    submit(core, "0", 20, max_tokens=2)
    run_until_idle(core)
    assert shapes(runner) == [{0: 8}, {0: 8}, {0: 4}, {0: 1}, {}]
    assert [chunk.samples for plan in runner.plans for chunk in plan.chunks] == [False, False, True, True]


def test_decodes_continue_while_a_long_prompt_is_computed():
    core, runner = make_core(num_blocks=40, max_batch_tokens=8)
    for name in ("0", "1"):
        submit(core, name, 2, max_tokens=10)
    core.step()
    submit(core, "2", 18)
    for _ in range(2):
        core.step()
    assert shapes(runner)[1:] == [{0: 1, 1: 1, 2: 6}] * 2


def test_decodes_continue_behind_a_long_prompt_of_higher_priority():
    core, runner = make_core(num_blocks=40, max_batch_tokens=8)
    submit(core, "0", 2, max_tokens=10)
    core.step()
    submit(core, "1", 21, priority=-1)
    for _ in range(2):
        core.step()
    assert shapes(runner)[1:] == [{0: 1, 1: 7}] * 2


def test_long_prompt_is_not_overtaken_by_later_short_ones():
    core, runner = make_core(num_blocks=40, max_batch_tokens=4)
    submit(core, "0", 12)
    for name in ("1", "2", "3"):
        submit(core, name, 2)
    for _ in range(3):
        core.step()
    assert shapes(runner) == [{0: 4}, {0: 4}, {0: 4}]


def test_waiting_sequences_are_admitted_by_priority_then_arrival():
    core, runner = make_core(max_sequences=1)
    for name, priority in (("0", 1), ("1", 0), ("2", -1), ("3", 0)):
        submit(core, name, 4, priority=priority)
    run_until_idle(core)
    assert [list(shape) for shape in shapes(runner)] == [[2], [1], [3], [0], []]


def test_max_sequences_holds():
    core, runner = make_core(max_sequences=2)
    for name in ("0", "1", "2"):
        submit(core, name, 4, max_tokens=3)
    run_until_idle(core)
    assert [list(shape) for shape in shapes(runner)] == [[0, 1], [0, 1], [0, 1], [2], [2], [2], []]


def test_admission_needs_blocks_for_all_tokens():
    core, runner = make_core(num_blocks=8, block_size=4, max_batch_tokens=8)
    submit(core, "0", 20)
    submit(core, "1", 20)
    run_until_idle(core)
    assert shapes(runner) == [{0: 8}, {0: 8}, {0: 4}, {1: 8}, {1: 8}, {1: 4}, {}]


def test_preempts_the_youngest_which_returns_with_its_answer():
    core, runner = make_core(num_blocks=6, block_size=4, max_model_len=20)
    for name in ("0", "1"):
        submit(core, name, 8, max_tokens=8)
    steps = run_until_idle(core)
    assert sum(step.stats.num_preemptions for step in steps) == 1
    events = [event for step in steps for event in step.events]
    for name in ("0", "1"):
        assert len([event for event in events if event.request_id == name]) == 8
    assert sum(len(plan.started) for plan in runner.plans) == 2, "each sequence is started once"


def test_preempts_the_lower_priority_even_if_it_is_older():
    core, runner = make_core(num_blocks=6, block_size=4, max_model_len=20, prefix_caching=False)
    submit(core, "0", 8, max_tokens=8, priority=1)
    submit(core, "1", 8, max_tokens=8)
    run_until_idle(core)
    restarted = {chunk.sequence_id for plan in runner.plans[1:] for chunk in plan.chunks if chunk.start == 0}
    assert restarted == {0}


def test_preempted_sequence_precedes_later_arrivals():
    core, runner = make_core(num_blocks=6, block_size=4, max_model_len=20)
    for name in ("0", "1"):
        submit(core, name, 8, max_tokens=8)
    core.step()
    submit(core, "2", 8)
    while core.step().stats.num_preemptions == 0:
        pass
    num_plans = len(runner.plans)
    assert all(2 not in shape for shape in shapes(runner))
    run_until_idle(core)
    admitted = [sequence_id for shape in shapes(runner)[num_plans:] for sequence_id in shape if sequence_id != 0]
    assert admitted.index(1) < admitted.index(2)


def test_prompt_tail_is_evicted_before_its_head():
    core, runner = make_core(num_blocks=8, block_size=4, max_model_len=32)
    submit(core, "0", 21)
    run_until_idle(core)
    submit(core, "1", 20)
    run_until_idle(core)
    # 5 of 8 blocks were cached; 1 took the 3 others and two of the 5.
    submit(core, "0", 21)
    [step, *_] = run_until_idle(core)
    assert step.stats.num_cached_tokens == 12
    assert runner.plans[-2].chunks[0].start == 12


def test_fully_cached_image_is_not_encoded_again():
    core, runner = make_core(block_size=4, max_model_len=24)
    prompt = [1, *[PLACEHOLDER] * 7, 2, 3]
    core.submit(generate("0", prompt, image_input("cat", 1, 7)))
    core.submit(generate("1", [PLACEHOLDER] * 20 + [1], image_input("dog", 0, 20)))
    run_until_idle(core)
    assert list(runner.resident.values()) == [20], "the cat's output was evicted"
    core.submit(generate("2", prompt, image_input("cat", 1, 7)))
    [step, *_] = run_until_idle(core)
    assert (step.stats.num_encoded_media, step.stats.num_cached_tokens) == (0, 8)


def test_partly_cached_image_is_encoded_again():
    core, _ = make_core(block_size=4, max_model_len=24)
    core.submit(generate("0", [PLACEHOLDER] * 6 + [2], image_input("cat", 0, 6)))
    core.submit(generate("1", [PLACEHOLDER] * 20 + [1], image_input("dog", 0, 20)))
    run_until_idle(core)
    core.submit(generate("2", [PLACEHOLDER] * 6 + [3], image_input("cat", 0, 6)))
    [step, *_] = run_until_idle(core)
    assert (step.stats.num_encoded_media, step.stats.num_cached_tokens) == (1, 4)
