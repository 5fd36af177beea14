"""Prompts with a common prefix that arrive together: the prefix is computed once."""

from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.plan import SequenceChunk
from tests.engine.checking_runner import PLACEHOLDER, answers, generate, image_input, make_core, run_until_idle
from tests.engine.core.scheduling import shapes, submit


@given(
    num_shared=st.integers(0, 30),
    tails=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=6),
    block_size=st.integers(1, 5),
    max_batch_tokens=st.integers(6, 60),
    max_sequences=st.integers(1, 6),
)
def test_shared_prefix_is_computed_once(
    num_shared: int, tails: list[list[int]], block_size: int, max_batch_tokens: int, max_sequences: int
):
    core, runner = make_core(
        num_blocks=300, block_size=block_size, max_batch_tokens=max_batch_tokens, max_sequences=max_sequences
    )
    for index, tail in enumerate(tails):
        core.submit(generate(str(index), [5] * num_shared + tail))
    run_until_idle(core)
    num_shared_blocks = num_shared // block_size
    computed = [index for plan in runner.plans for chunk in plan.chunks for index in _full_blocks(chunk, block_size)]
    assert [computed.count(index) for index in range(num_shared_blocks)] == [1] * num_shared_blocks


def _full_blocks(chunk: SequenceChunk, block_size: int) -> range:
    """Indices of the blocks that a chunk completes."""
    return range(chunk.start // block_size, (chunk.start + len(chunk.token_ids)) // block_size)


def test_skipped_sequence_does_not_delay_others():
    core, runner = make_core(num_blocks=40, block_size=4, max_batch_tokens=64)
    submit(core, "1", 14)
    submit(core, "11", 14)
    submit(core, "2", 14)
    run_until_idle(core)
    assert shapes(runner)[:2] == [{0: 14, 2: 14}, {1: 2}]


def test_skipped_sequence_keeps_its_place():
    core, runner = make_core(num_blocks=40, block_size=4, max_sequences=2)
    for name in ("1", "11", "2"):
        submit(core, name, 14, max_tokens=2)
    run_until_idle(core)
    assert shapes(runner)[:3] == [{0: 14}, {0: 1, 1: 2}, {1: 1, 2: 14}]


def test_equal_prompts_with_images_are_computed_once():
    core, runner = make_core(num_blocks=40, block_size=4)
    for name in "abc":
        core.submit(generate(name, [1, *[PLACEHOLDER] * 8, 2, 3], image_input("cat", 1, 8)))
    core.submit(generate("d", [1, *[PLACEHOLDER] * 8, 2, 3], image_input("dog", 1, 8)))
    steps = run_until_idle(core)
    assert shapes(runner)[:2] == [{0: 11, 3: 11}, {1: 3, 2: 3}]
    assert len({tuple(tokens) for name, tokens in answers(steps).items() if name != "d"}) == 1


def test_without_prefix_caching_all_prompts_are_computed():
    core, runner = make_core(num_blocks=40, block_size=4, prefix_caching=False)
    submit(core, "1", 14)
    submit(core, "11", 14)
    run_until_idle(core)
    assert shapes(runner)[0] == {0: 14, 1: 14}
