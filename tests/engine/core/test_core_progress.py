"""Sequences that compete for resources all finish."""

from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.protocol.messages import FinishReason
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input, make_core, num_pinned, run_until_idle

IMAGE_TOKENS = 8
WINDOW = 12

arrivals = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    min_size=2,
    max_size=12,
)


@given(
    arrivals=arrivals,
    num_blocks=st.integers(6, 30),
    max_batch_tokens=st.integers(1, 40),
    prefix_caching=st.booleans(),
)
def test_sequences_competing_for_room_for_one_image_all_finish(
    arrivals: list[tuple[str, int, int, int]], num_blocks: int, max_batch_tokens: int, prefix_caching: bool
):
    core, _ = make_core(
        num_blocks=num_blocks,
        block_size=2,
        max_model_len=WINDOW,
        max_batch_tokens=max_batch_tokens,
        prefix_caching=prefix_caching,
    )
    steps = [core.step()]
    for index, (name, num_text_tokens, priority, num_steps) in enumerate(arrivals):
        prompt = [1] * num_text_tokens + [PLACEHOLDER] * IMAGE_TOKENS
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        core.submit(
            generate(
                str(index),
                prompt,
                image_input(name, num_text_tokens, IMAGE_TOKENS),
                sampling=sampling,
                priority=priority,
            )
        )
        steps += [core.step() for _ in range(num_steps)]
    steps += run_until_idle(core, max_steps=40 * len(arrivals))
    finishes = [event.finish for step in steps for event in step.events if event.finish]
    assert finishes == [FinishReason.LENGTH] * len(arrivals)
    assert num_pinned(core.scheduler.state.encoder_cache) == 0


def test_image_without_room_waits_for_the_previous_one():
    core, runner = make_core(num_blocks=8, max_model_len=10)
    for name in ("a", "b"):
        core.submit(generate(name, [1] + [PLACEHOLDER] * 8, image_input(name, 1, 8)))
    core.step()
    assert [len(chunk.token_ids) for chunk in runner.plans[0].chunks] == [9, 1], "the text before it is computed"
    core.step()
    assert len(runner.plans[1].evicted) == len(runner.plans[1].encode) == 1
    assert [(chunk.start, len(chunk.token_ids)) for chunk in runner.plans[1].chunks] == [(1, 8)]


def test_sequence_refused_room_is_not_overtaken():
    core, runner = make_core(num_blocks=40, max_model_len=20, max_batch_tokens=80)
    # The 12 tokens of a and the 6 of c would fit together; the 12 of b do not fit next to a's.
    for name, num_tokens in (("a", 12), ("b", 12), ("c", 6)):
        core.submit(generate(name, [1] + [PLACEHOLDER] * num_tokens, image_input(name, 1, num_tokens)))
    core.step()
    assert [item.content for item in runner.plans[0].encode] == [b"a"]
    core.step()
    assert [item.content for item in runner.plans[1].encode] == [b"b", b"c"]
