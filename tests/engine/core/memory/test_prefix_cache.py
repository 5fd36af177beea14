"""Two blocks have the same hash if and only if their KV is the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.memory.block_pool import BlockPool
from glimpse.engine.core.memory.prefix_cache import PrefixCache, block_hash, root_hash
from glimpse.engine.core.request import ModelSpec, make_request
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.protocol.messages import MediaInput
from tests.engine.checking_runner import PLACEHOLDER, generate, image_input

BLOCK_SIZE = 4
MODEL = ModelSpec(vocab_size=10_000, encoder_row_width=2, eos_token_ids=())


def make(token_ids: list[int], *media: MediaInput, cache_salt: str = "") -> Sequence:
    request = generate("request", token_ids, *media, cache_salt=cache_salt)
    return Sequence(sequence_id=0, request=make_request(request, max_model_len=10_000, model=MODEL))


def hashes(sequence: Sequence) -> list[bytes]:
    """Returns the hashes of a sequence's full blocks, computed from scratch."""
    parent = root_hash(sequence.request.cache_salt)
    result: list[bytes] = []
    for start in range(0, sequence.num_tokens - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = block_hash(parent, start, sequence.token_ids[start : start + BLOCK_SIZE], sequence.request.spans)
        result.append(parent)
    return result


def compute(cache: PrefixCache, pool: BlockPool, sequence: Sequence) -> list[int]:
    """Marks all tokens of a sequence as computed, and returns its blocks."""
    block_table = [pool.allocate() for _ in range(-(-sequence.num_tokens // BLOCK_SIZE))]
    sequence.num_computed_tokens = sequence.num_tokens
    cache.register_blocks(sequence, block_table, 0)
    return block_table


def make_cache(*, enabled: bool = True) -> tuple[PrefixCache, BlockPool]:
    pool = BlockPool(64)
    return PrefixCache(pool=pool, block_size=BLOCK_SIZE, enabled=enabled), pool


@pytest.mark.parametrize(
    ("num_shared_tokens", "num_own_tokens", "num_matched_blocks"),
    [(0, 9, 0), (3, 6, 0), (4, 1, 1), (7, 1, 1), (8, 1, 2), (8, 0, 1), (9, 0, 2), (12, 8, 3)],
)
def test_finds_the_longest_prefix_without_the_last_token(
    num_shared_tokens: int, num_own_tokens: int, num_matched_blocks: int
):
    cache, pool = make_cache()
    shared = list(range(100, 100 + num_shared_tokens))
    blocks = compute(cache, pool, make([*shared, 1, 1, 1, 1]))
    second = make(shared + [2] * num_own_tokens or [2])
    assert cache.match(second) == blocks[:num_matched_blocks]


def test_block_is_found_once_full_and_computed():
    cache, pool = make_cache()
    first = make([5] * 12)
    blocks = [pool.allocate() for _ in range(3)]
    first.num_computed_tokens = 7
    cache.register_blocks(first, blocks, 0)
    assert cache.match(make([5] * 12)) == blocks[:1]
    first.num_computed_tokens = 8
    cache.register_blocks(first, blocks, 7)
    assert cache.match(make([5] * 12)) == blocks[:2]


def test_generated_tokens_are_found_like_prompt_tokens():
    cache, pool = make_cache()
    first = make([5] * 6)
    first.token_ids += [6] * 6
    blocks = compute(cache, pool, first)
    assert cache.match(make([5] * 6 + [6] * 7)) == blocks


def test_disabled_cache_registers_and_finds_nothing():
    cache, pool = make_cache(enabled=False)
    first = make([5] * 12)
    compute(cache, pool, first)
    assert cache.match(make([5] * 12)) == []
    assert {pool.find(each) for each in hashes(first)} == {None}


def test_different_salts_share_nothing():
    cache, pool = make_cache()
    compute(cache, pool, make([5] * 12, cache_salt="mine"))
    assert len(cache.match(make([5] * 12, cache_salt="mine"))) == 2
    assert cache.match(make([5] * 12, cache_salt="yours")) == []
    assert cache.match(make([5] * 12)) == []


def test_similar_salts_have_different_roots():
    salts = ["", "\0", "\0\0", "a", "a\0", "ab", "b", "glimpse.kv.block.v1"]
    assert len({root_hash(salt) for salt in salts}) == len(salts)


@given(
    text=st.lists(st.integers(0, 3), max_size=10),
    num_tokens=st.integers(1, 10),
    rest=st.lists(st.integers(0, 3), max_size=10),
    names_of_images=st.lists(st.text(max_size=3), min_size=2, max_size=2, unique=True),
)
def test_different_images_share_no_block_from_the_image_on(
    text: list[int], num_tokens: int, rest: list[int], names_of_images: list[str]
):
    prompt = text + [PLACEHOLDER] * num_tokens + rest
    one, other = (hashes(make(prompt, image_input(name, len(text), num_tokens))) for name in names_of_images)
    num_shared = len(text) // BLOCK_SIZE
    assert one[:num_shared] == other[:num_shared]
    assert not set(one[num_shared:]) & set(other[num_shared:])
    cache, pool = make_cache()
    compute(cache, pool, make(prompt, image_input(names_of_images[0], len(text), num_tokens)))
    found = cache.match(make(prompt, image_input(names_of_images[1], len(text), num_tokens)))
    assert len(found) == min(num_shared, (len(prompt) - 1) // BLOCK_SIZE)


@given(
    one=st.lists(st.integers(0, 2), min_size=4, max_size=16),
    other=st.lists(st.integers(0, 2), min_size=4, max_size=16),
)
def test_hashes_are_equal_exactly_if_all_tokens_up_to_the_block_are(one: list[int], other: list[int]):
    for index, (name, other_name) in enumerate(zip(hashes(make(one)), hashes(make(other)), strict=False)):
        end = (index + 1) * BLOCK_SIZE
        assert (name == other_name) == (one[:end] == other[:end])


def test_every_input_of_a_block_changes_its_hash():
    pads = [PLACEHOLDER] * 4
    variants = [
        make(pads),
        make(pads, image_input("a", 0, 4)),
        make(pads, image_input("b", 0, 4)),
        # The same tokens, but different ones belong to the image.
        make(pads, image_input("a", 0, 2)),
        make(pads, image_input("a", 1, 2)),
        make(pads, image_input("a", 2, 2)),
        make(pads, image_input("a", 0, 2), image_input("a", 2, 2)),
        make(pads, image_input("a", 0, 2), image_input("b", 2, 2)),
        make(pads, image_input("b", 0, 2), image_input("a", 2, 2)),
        make(pads, image_input("a", 0, 1), image_input("a", 1, 3)),
        make(pads, image_input("a", 0, 4, ((0, 1), (2, 2)))),
        make(pads, image_input("a", 0, 4, ((1, 3),))),
    ]
    first_names = [hashes(sequence)[0] for sequence in variants]
    assert len(set(first_names)) == len(variants)


def test_literal_tokens_before_the_rows_of_an_image_are_shared():
    prompt = [1, 2, 1, 2, 1, PLACEHOLDER, PLACEHOLDER, 2]
    one, other = (hashes(make(prompt, image_input(name, 0, 8, ((5, 2),)))) for name in ("cat", "dog"))
    assert (one[0] == other[0], one[1] == other[1]) == (True, False)


def test_hash_depends_on_the_part_of_an_image():
    pads = [PLACEHOLDER] * 4
    spans = make([PLACEHOLDER] * 16, image_input("a", 0, 16)).request.spans
    parent = root_hash("")
    assert block_hash(parent, 4, pads, spans) != block_hash(parent, 8, pads, spans)


def test_hash_separates_its_fields():
    parent = root_hash("")
    assert block_hash(parent, 0, [1, 2], ()) != block_hash(parent, 0, [1], ())
    assert block_hash(parent, 0, [], ()) not in (parent, root_hash("glimpse"))
    assert block_hash(b"ab", 0, [], ()) != block_hash(b"a", 0, [], ())
