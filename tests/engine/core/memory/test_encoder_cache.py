"""Images are encoded once, stay cached while pinned, and are evicted least recently used first."""

import pytest

from glimpse.engine.core.memory.encoder_cache import EncoderCache
from glimpse.engine.core.request import ModelSpec, make_request
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.protocol.media import Embeddings
from glimpse.engine.protocol.messages import MediaInput
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input, key, make_core, num_pinned, run_until_idle

WHOLE = 1000
MODEL = ModelSpec(vocab_size=8, encoder_row_width=2, eos_token_ids=())


def make(sequence_id: int, *images: tuple[str, int]) -> Sequence:
    """Returns a sequence of consecutive images (name, number of tokens) and a text token."""
    media: list[MediaInput] = []
    end = 0
    for name, num_tokens in images:
        media.append(image_input(name, end, num_tokens))
        end += num_tokens
    request = generate(str(sequence_id), [PLACEHOLDER] * end + [1], *media)
    return Sequence(sequence_id=sequence_id, request=make_request(request, max_model_len=WHOLE, model=MODEL))


def make_cache(capacity_tokens: int) -> EncoderCache:
    return EncoderCache(bytes_per_row=10, capacity_bytes=10 * capacity_tokens)


def reach(cache: EncoderCache, sequence: Sequence, start: int, end: int) -> int:
    """Returns where the computable tokens end if any number of tokens may be encoded."""
    return cache.plan_media(sequence, start, end, max_more_tokens=WHOLE)


def use(cache: EncoderCache, sequence: Sequence) -> tuple[list[bytes], list[bytes]]:
    """Computes all of a sequence in a step. Returns the encoded keys and the evicted keys."""
    assert reach(cache, sequence, 0, sequence.num_tokens) == sequence.num_tokens
    encode, evicted = cache.finish_plan()
    sequence.num_computed_tokens = sequence.num_tokens
    cache.advance(sequence, first_token=0)
    return [item.key for item in encode], list(evicted)


def test_key_is_encoded_once_for_all_sequences():
    cache = make_cache(10)
    first, second, third = make(1, ("cat", 4)), make(2, ("cat", 4)), make(3, ("cat", 4))
    assert reach(cache, first, 0, 5) == reach(cache, second, 0, 5) == 5
    encode, evicted = cache.finish_plan()
    assert [item.key for item in encode] == [key("cat")]
    assert encode[0].content == b"cat"
    assert evicted == ()
    assert use(cache, third) == ([], [])


def test_embeddings_take_room_but_no_encoding_budget():
    cache = make_cache(8)
    sequence = make(1, ("cat", 4), ("dog", 4))
    embeddings = Embeddings(dtype="float16", data=memoryview(bytes(16)))
    sequence.request.contents[key("dog")] = embeddings
    assert cache.plan_media(sequence, 0, 8, max_more_tokens=4) == 8
    assert cache.num_tokens_to_encode == 4
    assert reach(cache, make(2, ("sea", 1)), 0, 1) == 0, "there is no room"
    encode, _ = cache.finish_plan()
    assert encode[1].content is embeddings
    assert sequence.encoded_keys == {key("cat")}


def test_span_is_not_encoded_for_tokens_outside_it():
    cache = make_cache(10)
    sequence = make(1, ("cat", 4), ("dog", 4))
    assert reach(cache, sequence, 4, 8) == 8
    assert [item.key for item in cache.finish_plan()[0]] == [key("dog")]
    assert reach(cache, sequence, 8, 9) == 9
    assert cache.finish_plan() == ((), ())


def test_literal_tokens_need_no_image():
    cache = make_cache(3)
    prompt = [1, PLACEHOLDER, PLACEHOLDER, 2, PLACEHOLDER, 3]
    request = generate("0", prompt, image_input("cat", 0, 6, ((1, 2), (4, 1))))
    sequence = Sequence(sequence_id=0, request=make_request(request, max_model_len=WHOLE, model=MODEL))
    assert reach(cache, sequence, 0, 1) == 1
    assert cache.finish_plan() == ((), ())
    assert reach(cache, sequence, 1, 4) == 4
    assert cache.num_tokens_to_encode == 3, "rows of the encoder output"
    cache.finish_plan()
    for computed, expected in ((4, 1), (5, 0)):
        start, sequence.num_computed_tokens = sequence.num_computed_tokens, computed
        cache.advance(sequence, first_token=start)
        assert num_pinned(cache) == expected
    assert reach(cache, make(1, ("dog", 3)), 0, 3) == 3
    cache.finish_plan()
    assert reach(cache, sequence, 5, 6) == 6, "the output is evicted, and the last token does not need it"


def test_empty_range_needs_no_image():
    cache = make_cache(10)
    assert reach(cache, make(1, ("cat", 4)), 2, 2) == 2
    assert (cache.finish_plan(), num_pinned(cache)) == (((), ()), 0)


def test_least_recently_used_output_is_evicted_first():
    cache = make_cache(10)
    for sequence_id, name in enumerate(["cat", "dog", "cat"]):
        use(cache, make(sequence_id, (name, 4)))
    assert use(cache, make(3, ("sea", 4))) == ([key("sea")], [key("dog")])
    assert use(cache, make(4, ("map", 10))) == ([key("map")], [key("cat"), key("sea")])
    assert not cache.holds(key("cat"))
    assert not cache.holds(key("sea"))


def test_nothing_is_evicted_unless_it_makes_room():
    cache = make_cache(10)
    use(cache, make(1, ("cat", 4)))
    holder, large = make(2, ("dog", 4)), make(3, ("sea", 7))
    reach(cache, holder, 0, 2)
    assert reach(cache, large, 0, 8) == 0
    assert cache.finish_plan()[1] == ()


def test_chunk_ends_before_an_image_without_room():
    cache = make_cache(10)
    reach(cache, make(1, ("cat", 4)), 0, 2)
    second = make(2, ("dog", 4), ("sea", 4))
    assert reach(cache, second, 0, 9) == 4


def test_image_is_pinned_until_its_last_token_is_computed():
    cache = make_cache(10)
    holder, other = make(1, ("cat", 4)), make(2, ("sea", 10))
    for end in (1, 3):
        assert reach(cache, holder, holder.num_computed_tokens, end) == end
        cache.finish_plan()
        start, holder.num_computed_tokens = holder.num_computed_tokens, end
        cache.advance(holder, first_token=start)
        assert num_pinned(cache) == 1
        assert reach(cache, other, 0, 11) == 0
        cache.finish_plan()
    assert reach(cache, holder, 3, 4) == 4
    cache.finish_plan()
    holder.num_computed_tokens = 4
    cache.advance(holder, first_token=3)
    assert num_pinned(cache) == 0
    assert use(cache, other) == ([key("sea")], [key("cat")])


def test_repeated_image_stays_pinned_for_its_second_span():
    cache = make_cache(10)
    sequence = make(1, ("cat", 4), ("cat", 4))
    reach(cache, sequence, 0, 6)
    assert len(cache.finish_plan()[0]) == 1
    sequence.num_computed_tokens = 6
    cache.advance(sequence, first_token=0)
    assert num_pinned(cache) == 1


def test_image_released_before_its_step_is_not_encoded():
    cache = make_cache(10)
    sequence = make(1, ("cat", 4))
    reach(cache, sequence, 0, 5)
    cache.release(sequence)
    assert cache.finish_plan() == ((), ())
    assert use(cache, make(2, ("sea", 10))) == ([key("sea")], []), "there is room"


def test_after_a_refusal_no_other_sequence_gets_a_new_image():
    cache = make_cache(10)
    holder, refused, third = make(1, ("cat", 4)), make(2, ("sea", 10)), make(3, ("dog", 2))
    reach(cache, holder, 0, 2)
    assert reach(cache, refused, 0, 11) == 0
    assert reach(cache, third, 0, 3) == 0
    assert reach(cache, holder, 2, 5) == 5, "a sequence that has its image continues"
    cache.finish_plan()
    assert reach(cache, third, 0, 3) == 3


def test_failed_step_evicts_all_its_keys():
    cache = make_cache(10)
    use(cache, make(1, ("cat", 4)))
    sequence = make(2, ("sea", 10))
    reach(cache, sequence, 0, 11)
    encode, evicted = cache.finish_plan()
    cache.release(sequence)
    cache.fail(encoded=[item.key for item in encode], evicted=evicted)
    assert cache.has_evictions
    assert set(cache.finish_plan()[1]) == {key("cat"), key("sea")}
    assert use(cache, make(3, ("map", 10))) == ([key("map")], []), "there is room"


@pytest.mark.parametrize(
    ("max_more_tokens", "end", "encoded"),
    [(0, 4, ["cat"]), (5, 4, ["cat"]), (6, 6, ["cat", "dog"]), (8, 6, ["cat", "dog"]), (9, 10, ["cat", "dog", "sea"])],
)
def test_encoding_budget_holds_but_allows_one_image(max_more_tokens: int, end: int, encoded: list[str]):
    cache = make_cache(10)
    sequence = make(1, ("cat", 4), ("dog", 2), ("sea", 3))
    assert cache.plan_media(sequence, 0, 10, max_more_tokens=max_more_tokens) == end
    assert [item.key for item in cache.finish_plan()[0]] == [key(name) for name in encoded]


def test_refused_image_is_encoded_in_the_next_step():
    cache = make_cache(10)
    sequence = make(1, ("cat", 4), ("dog", 2))
    assert cache.plan_media(sequence, 0, 7, max_more_tokens=0) == 4
    cache.finish_plan()
    assert cache.plan_media(sequence, 4, 7, max_more_tokens=0) == 7
    assert [item.key for item in cache.finish_plan()[0]] == [key("dog")]


def test_requests_of_another_salt_do_not_find_encoder_outputs():
    core, runner = make_core(num_blocks=40, max_model_len=40, encoder_cache_tokens=40)
    encoded: dict[str, list[int]] = {}
    for index, salt in enumerate(["", "salt", "other salt", "salt", ""]):
        prompt = [PLACEHOLDER] * 6 + [index + 1]  # the blocks before the last are not full, so only the encoder caches
        core.submit(generate(f"{index}", [index + 1, *prompt], image_input("cat", 1, 6), cache_salt=salt))
        [step, *_] = run_until_idle(core)
        event = next(event for event in step.events if event.token_ids)
        encoded.setdefault(salt, []).append(len(event.stats.encoded_media))
    assert encoded == {"": [1, 0], "salt": [1, 0], "other salt": [1]}
    assert len(runner.resident) == 3
