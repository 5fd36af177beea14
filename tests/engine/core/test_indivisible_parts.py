"""Tokens that attend to each other are computed in one step, and no prefix from the cache ends among them."""

from dataclasses import replace

import pytest

from glimpse.engine.core.memory.block_pool import BlockPool
from glimpse.engine.core.memory.prefix_cache import PrefixCache
from glimpse.engine.core.request import ModelSpec, make_request
from glimpse.engine.core.scheduler import Scheduler
from glimpse.engine.core.sequence import Sequence
from tests.engine.checking_runner import LIMITS, PLACEHOLDER, generate, image_input

FEW = replace(LIMITS, max_batch_tokens=8, max_sequences=2, max_decode_slowdown=2.0)
MODEL = ModelSpec(vocab_size=10_000, encoder_row_width=2, eos_token_ids=(), bidirectional_runs=True)
PREFIX_LM = replace(MODEL, bidirectional_prompt=True)


def make(num_before: int, num_rows: int, num_after: int, *, model: ModelSpec = MODEL, name: str = "image") -> Sequence:
    token_ids = [*[1] * num_before, *[PLACEHOLDER] * num_rows, *[2] * num_after]
    request = generate("request", token_ids, image_input(name, num_before, num_rows))
    return Sequence(sequence_id=0, request=make_request(request, max_model_len=10_000, model=model))


@pytest.mark.parametrize(
    ("num_before", "num_rows", "num_after", "ends"),
    [
        (3, 5, 4, [8, 12]),
        (6, 5, 4, [6, 14, 15]),
        (8, 8, 1, [8, 16, 17]),
        (0, 8, 9, [8, 16, 17]),
    ],
)
def test_steps_end_before_or_behind_an_image(num_before: int, num_rows: int, num_after: int, ends: list[int]) -> None:
    scheduler = Scheduler(FEW)
    sequence = make(num_before, num_rows, num_after)
    scheduler.add(sequence)
    found: list[int] = []
    while sequence.num_computed_tokens < sequence.num_tokens:
        step = scheduler.schedule()
        (chunk,) = step.plan.chunks
        found.append(chunk.start + len(chunk.token_ids))
        scheduler.complete(step)
    assert found == ends


@pytest.mark.parametrize(("num_before", "num_matched"), [(4, 1), (5, 1), (6, 1), (7, 4), (8, 2), (3, 3)])
def test_a_cached_prefix_ends_before_or_behind_an_image(num_before: int, num_matched: int) -> None:
    """Blocks have 4 tokens, the image 9; the second sequence ends right behind it."""
    pool = BlockPool(64)
    cache = PrefixCache(pool=pool, block_size=4, enabled=True)
    first, second = make(num_before, 9, 8), make(num_before, 9, 1)
    blocks = [pool.allocate() for _ in range(-(-first.num_tokens // 4))]
    first.num_computed_tokens = first.num_tokens
    cache.register_blocks(first, blocks, 0)
    assert cache.match(second) == blocks[:num_matched]


def test_prompts_that_attend_to_all_of_themselves_are_computed_whole() -> None:
    """The second one fits in the first step, but for its second image, for whose output there is no room."""
    scheduler = Scheduler(replace(FEW, num_blocks=32, max_batch_tokens=128))
    images = (image_input("one", 1, 20), image_input("other", 21, 20))
    request = generate("request", [1, *[PLACEHOLDER] * 40], *images)
    second = Sequence(sequence_id=1, request=make_request(request, max_model_len=64, model=PREFIX_LM))
    sequences = [make(1, 40, 0, model=PREFIX_LM, name="first"), second]
    for sequence in sequences:
        scheduler.add(sequence)
    for sequence in sequences:
        step = scheduler.schedule()
        assert [(each.sequence_id, each.start, len(each.token_ids)) for each in step.plan.chunks] == [
            (sequence.sequence_id, 0, 41)
        ]
        scheduler.complete(step)
        scheduler.remove(sequence)


@pytest.mark.parametrize(("num_after", "num_matched"), [(8, 4), (9, 0), (7, 0)])
def test_their_blocks_are_found_by_equal_prompts_alone(num_after: int, num_matched: int) -> None:
    pool = BlockPool(64)
    cache = PrefixCache(pool=pool, block_size=4, enabled=True)
    first, second = (make(3, 9, each, model=PREFIX_LM) for each in (8, num_after))
    blocks = [pool.allocate() for _ in range(5)]
    first.num_computed_tokens = first.num_tokens
    cache.register_blocks(first, blocks, 0)
    assert cache.match(second) == blocks[:num_matched]
