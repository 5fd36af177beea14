"""Snapshots are kept where later prompts need them, and given up before sequences have to wait.

`CheckingRunner` checks that each state is what its reader expects.
"""

from collections.abc import Sequence

import pytest

from glimpse.engine.core.core import Core
from glimpse.engine.protocol.messages import MediaInput
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import answers, generate, image_input, make_core, run_until_idle

BLOCK_SIZE = 4
PROMPT = [1, 2, 3, 4, 5, 6] * 3  # 18 tokens: 4 blocks, and 2 tokens more
IMAGE = [3, 3, *[0] * 8, 2, 2, 2, 2]


def ask(core: Core, token_ids: Sequence[int], *media: MediaInput, num_tokens: int = 1) -> tuple[int, list[int]]:
    """Returns the cached tokens of a request and its answer."""
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    core.submit(generate("it", token_ids, *media, sampling=sampling))
    steps = run_until_idle(core)
    (num_cached,) = (event.stats.num_cached_tokens for step in steps for event in step.events if event.finish)
    return num_cached, answers(steps)["it"]


def test_the_same_prompt_begins_at_the_last_end_of_a_block() -> None:
    core, _ = make_core(num_blocks=32, num_states=6)
    assert [ask(core, PROMPT)[0] for _ in range(3)] == [0, 16, 16]


def test_the_next_turn_begins_at_the_last_end_of_a_block_in_the_answer() -> None:
    core, _ = make_core(num_blocks=32, num_states=6)
    _, answer = ask(core, PROMPT, num_tokens=12)
    # All but the last token of the answer are computed: 29 tokens.
    assert ask(core, [*PROMPT, *answer, 1, 1])[0] == 28
    assert ask(core, [*PROMPT, *answer[:4], 1, 1])[0] == 16, "the answer has one snapshot"


def test_prompts_that_leave_another_one_begin_where_it_was_left_before() -> None:
    core, _ = make_core(num_blocks=64, num_states=8)
    other = [*PROMPT[:9], 7, 7, 7, 7, 7]
    assert ask(core, PROMPT)[0] == 0
    assert ask(core, other)[0] == 0, "its KV is known, but no state"
    assert ask(core, [*PROMPT[:9], 1, 1, 1])[0] == 8


def test_other_questions_about_an_image_begin_after_it() -> None:
    core, _ = make_core(num_blocks=32, num_states=6)
    image = image_input("cat", 2, 8)
    assert ask(core, IMAGE, image)[0] == 0
    assert ask(core, [*IMAGE[:10], 5, 5, 5], image)[0] == 8


def test_choices_of_one_prompt_wait_for_its_snapshot() -> None:
    core, runner = make_core(num_blocks=32, num_states=8, max_batch_tokens=5)
    for name in "abcd":
        core.submit(generate(name, PROMPT, sampling=SamplingParams(max_tokens=6, ignore_eos=True)))
    found = answers(run_until_idle(core))
    assert found["a"] == found["b"] == found["c"] == found["d"]
    assert sum(plan.num_tokens for plan in runner.plans) == len(PROMPT) + 3 * 2 + 4 * 5


def test_snapshots_are_given_up_for_sequences() -> None:
    core, runner = make_core(num_blocks=64, num_states=2)
    assert [ask(core, PROMPT)[0], ask(core, PROMPT)[0]] == [0, 16]
    for name in "ab":
        core.submit(generate(name, [ord(name) % 7] * 10, sampling=SamplingParams(max_tokens=3, ignore_eos=True)))
    run_until_idle(core)
    assert max(len(plan.chunks) for plan in runner.plans) == 2
    assert ask(core, PROMPT)[0] == 0


def test_a_single_state_serves_one_sequence_after_the_other() -> None:
    core, runner = make_core(num_blocks=64, num_states=1)
    for name in "ab":
        core.submit(generate(name, PROMPT, sampling=SamplingParams(max_tokens=9, ignore_eos=True)))
    found = answers(run_until_idle(core))
    assert found["a"] == found["b"]
    assert max(len(plan.chunks) for plan in runner.plans) == 1


def test_as_many_sequences_run_as_there_are_states() -> None:
    core, runner = make_core(num_blocks=64, num_states=3)
    for name in "abcde":
        core.submit(generate(name, [ord(name) % 7] * 6, sampling=SamplingParams(max_tokens=9, ignore_eos=True)))
    run_until_idle(core)
    assert max(len(plan.chunks) for plan in runner.plans) == 3


def test_draft_tokens_take_states_and_leave_a_snapshot_in_the_answer() -> None:
    core, runner = make_core(num_blocks=32, num_states=20, max_draft_tokens=3)
    runner.script = [1, 2, 3] * 4
    answer = ask(core, [5, 5, 5, 5, 5, 1, 2, 3], num_tokens=12)[1]
    assert max(chunk.num_draft_tokens for plan in runner.plans for chunk in plan.chunks) == 3
    assert ask(core, [5, 5, 5, 5, 5, 1, 2, 3, *answer, 1])[0] == 16


@pytest.mark.parametrize(("num_states", "most"), [(3, 0), (8, 2), (17, 3)])
def test_draft_tokens_take_a_quarter_of_few_states(num_states: int, most: int) -> None:
    core, runner = make_core(num_blocks=32, num_states=num_states, max_draft_tokens=3)
    runner.script = [1, 2, 3] * 4
    ask(core, [5, 1, 2, 3], num_tokens=12)
    assert max(chunk.num_draft_tokens for plan in runner.plans for chunk in plan.chunks) == most
