"""Probes in the core: they tell what a request would find in the caches, and change nothing."""

import pytest
from msgspec.structs import replace

from glimpse.engine.core.core import Core
from glimpse.engine.protocol.messages import FinishReason, Generate, RequestStats, TokenEvent
from tests.engine.checking_runner import events_of, generate, image_input, make_core

WORDS = [1, 2, 1, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2]


def last_event(core: Core, request: Generate) -> TokenEvent:
    core.submit(request)
    (event,) = [event for event in events_of(core) if event.finish]
    return event


def probe(core: Core, request: Generate) -> RequestStats:
    media = [replace(medium, content=memoryview(b"")) for medium in request.media]
    event = last_event(core, replace(request, request_id="probe", media=media, is_probe=True))
    assert (event.request_id, event.finish, event.token_ids) == ("probe", FinishReason.STOP, [])
    return event.stats


def test_a_probe_tells_what_the_next_request_finds() -> None:
    core, _ = make_core(encoder_cache_tokens=16)
    request = generate("first", [*WORDS[:2], 0, 0, 0, *WORDS], image_input("cat", 2, 3))
    cold = probe(core, request)
    assert (cold.num_cached_tokens, cold.encoded_media) == (0, [0])
    assert last_event(core, request).stats.encoded_media == [0]
    # Another text before the image: its output is cached, its tokens are not.
    moved = generate("moved", [*WORDS[4:6], 2, 0, 0, 0, *WORDS], image_input("cat", 3, 3))
    for again in (replace(request, request_id="again"), moved):
        expected = probe(core, again)
        stats = last_event(core, again).stats
        assert expected.num_cached_tokens == stats.num_cached_tokens
        assert expected.encoded_media == stats.encoded_media == []
    assert core.scheduler.state.block_pool.num_used == 0


@pytest.mark.parametrize("salt", ["", "other"])
def test_probes_see_their_own_salt_alone(salt: str) -> None:
    core, _ = make_core()
    last_event(core, generate("first", WORDS))
    assert probe(core, generate("second", WORDS, cache_salt=salt)).num_cached_tokens == (0 if salt else 12)


def test_a_full_queue_takes_probes() -> None:
    core, _ = make_core(max_waiting=0)
    assert probe(core, generate("first", WORDS)).num_cached_tokens == 0


def test_a_prompt_that_would_be_refused_is_refused() -> None:
    core, _ = make_core(max_model_len=8)
    assert last_event(core, replace(generate("first", WORDS), is_probe=True)).finish is FinishReason.ERROR
