"""Requests for embeddings in the core: they share steps with answers, and end once with the prompt's embedding."""

import pytest

from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.engine.protocol.pooling_params import PoolingMode
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import (
    embed,
    embedding_of,
    events_of,
    generate,
    image_input,
    make_core,
)

WORDS = [1, 2, 1, 1, 2, 2, 1, 2, 1, 1]
LONG_ANSWER = SamplingParams(max_tokens=12, ignore_eos=True)


def last_events(core: Core) -> dict[str, TokenEvent]:
    """Runs all requests; returns the one event with `finish` of each."""
    ended = [event for event in events_of(core) if event.finish]
    events = {event.request_id: event for event in ended}
    assert len(events) == len(ended)
    return events


@pytest.mark.parametrize("mode", list(PoolingMode))
@pytest.mark.parametrize("ahead", [False, True])
def test_prompts_in_chunks_are_embedded_beside_answers(mode: PoolingMode, *, ahead: bool) -> None:
    core, runner = make_core(max_batch_tokens=4, async_scheduling=ahead, lazy=ahead)
    requests = [embed(str(index), WORDS[index:], mode=mode) for index in range(4)]
    core.submit(generate("answer", WORDS, sampling=LONG_ANSWER))
    for request in requests:
        core.submit(request)
    events = last_events(core)
    assert [events[each.request_id].embedding for each in requests] == [embedding_of(each) for each in requests]
    assert all(events[each.request_id].finish is FinishReason.STOP for each in requests)
    assert not events["answer"].embedding
    assert core.scheduler.state.block_pool.num_used == 0
    assert not runner.sequences


def test_a_last_token_needs_no_cached_block_a_mean_needs_all() -> None:
    core, _ = make_core()
    core.submit(embed("first", WORDS))
    last_events(core)
    core.submit(embed("last", WORDS))
    core.submit(embed("mean", WORDS, mode=PoolingMode.MEAN))
    events = last_events(core)
    assert events["last"].stats.num_cached_tokens == 8
    assert events["mean"].stats.num_cached_tokens == 0


def test_answers_reuse_what_embeddings_computed() -> None:
    core, _ = make_core()
    core.submit(embed("mean", WORDS, mode=PoolingMode.MEAN))
    last_events(core)
    core.submit(generate("answer", WORDS))
    assert last_events(core)["answer"].stats.num_cached_tokens == 8


def test_the_last_token_of_a_prompt_has_no_draft_tokens() -> None:
    core, runner = make_core(max_batch_tokens=3, max_draft_tokens=3)
    request = embed("a", [1, 2] * 5)  # its last chunk is a single token, after text that repeats
    core.submit(request)
    assert last_events(core)["a"].embedding == embedding_of(request)
    assert not any(chunk.num_draft_tokens for plan in runner.plans for chunk in plan.chunks)


def test_a_mean_is_computed_anew_after_a_failed_step() -> None:
    core, runner = make_core(max_batch_tokens=6)
    request = embed("mean", WORDS[:9], mode=PoolingMode.MEAN)
    core.submit(request)
    core.submit(generate("other", [2, 2, 2]))
    core.step()
    runner.fails = "before for want of memory"
    events = last_events(core)
    assert events["other"].error is EngineErrorCode.OUT_OF_MEMORY
    assert events["mean"].embedding == embedding_of(request)


def test_a_mean_is_computed_anew_after_a_preemption() -> None:
    core, _ = make_core(num_blocks=6, block_size=2, max_batch_tokens=4)
    request = embed("mean", WORDS[:8], mode=PoolingMode.MEAN, priority=1)
    core.submit(request)
    core.step()
    core.submit(generate("urgent", [1, 2, 1], sampling=SamplingParams(max_tokens=9, ignore_eos=True)))
    assert last_events(core)["mean"].embedding == embedding_of(request)


def test_counts_the_media_that_were_encoded() -> None:
    core, _ = make_core()
    core.submit(embed("a", [0, 0, 0, 1], image_input("cat", 0, 3)))
    assert len(last_events(core)["a"].stats.encoded_media) == 1
    core.submit(embed("b", [0, 0, 0, 2], image_input("cat", 0, 3)))
    assert len(last_events(core)["b"].stats.encoded_media) == 0


def test_a_cancelled_request_has_no_embedding() -> None:
    core, _ = make_core(max_batch_tokens=4)
    core.submit(embed("a", WORDS))
    core.step()
    core.cancel("a")
    event = last_events(core)["a"]
    assert (event.finish, event.embedding) == (FinishReason.CANCELLED, b"")


def test_a_prompt_may_fill_the_context_window() -> None:
    core, _ = make_core(max_model_len=10)
    core.submit(embed("fits", WORDS))
    core.submit(embed("too long", [*WORDS, 1]))
    events = last_events(core)
    assert events["fits"].embedding
    assert events["too long"].error is EngineErrorCode.PROMPT_TOO_LONG
