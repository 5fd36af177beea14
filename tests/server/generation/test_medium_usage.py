"""The usage of each medium: the last stage of its processing whose result was cached."""

from collections.abc import Sequence

import pytest

from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import RequestStats
from glimpse.media.cache.request_media import MediaUsage, MediumOrigin
from glimpse.media.kind import MediaKind
from glimpse.server.generation.medium_usage import CacheTier, PromptMedium
from glimpse.server.generation.usage import LoadedPrompt, Usage

NEW = MediumOrigin()
FETCHED = MediumOrigin(num_fetched=1)
MIXED = MediumOrigin(num_fetched=1, num_cached_files=1)
FILES = MediumOrigin(num_cached_files=2)
DECODED = MediumOrigin(num_cached_files=1, was_decoded=True)


def medium(start: int, origin: MediumOrigin = NEW, *, is_embedding: bool = False) -> PromptMedium:
    """Ten tokens, of which the first and the last are marks around the placeholder tokens."""
    span = MediaSpan(kind=MediaKind.IMAGE, start=start, num_tokens=10, runs=((1, 8),), key=b"a", grid=(1, 2, 4))
    return PromptMedium(span=span, origin=origin, is_embedding=is_embedding, width=56, height=28, num_tiles=1)


def tiers(*media: PromptMedium, cached: int = 0, encoded: Sequence[int] = ()) -> list[CacheTier]:
    usage = Usage()
    usage.add_prompt(0, LoadedPrompt(token_ids=[1], media=[], media_usage=MediaUsage(), seen=media))
    usage.add_stats(0, RequestStats(num_cached_tokens=cached, encoded_media=[*encoded]))
    return [*usage.cache_tiers]


@pytest.mark.parametrize(
    ("origin", "tier"),
    [
        (NEW, CacheTier.NONE),
        (FETCHED, CacheTier.NONE),
        (MIXED, CacheTier.NONE),
        (FILES, CacheTier.FILE),
        (DECODED, CacheTier.DECODED),
    ],
)
def test_an_encoded_medium_has_the_tier_of_its_loading(origin: MediumOrigin, tier: CacheTier) -> None:
    assert tiers(medium(3, origin), encoded=[0]) == [tier]


@pytest.mark.parametrize(
    ("cached", "tier"),
    [(0, CacheTier.ENCODER), (11, CacheTier.ENCODER), (12, CacheTier.PREFIX), (16, CacheTier.PREFIX)],
)
def test_a_prefix_holds_a_medium_with_its_last_placeholder_token(cached: int, tier: CacheTier) -> None:
    assert tiers(medium(3, DECODED), cached=cached) == [tier]


def test_each_medium_has_its_own_tier() -> None:
    media = [medium(0, FILES), medium(10), medium(20), medium(30)]
    assert tiers(*media, cached=16, encoded=[2]) == [
        CacheTier.PREFIX,
        CacheTier.ENCODER,
        CacheTier.NONE,
        CacheTier.ENCODER,
    ]


def test_embeddings_are_never_encoded() -> None:
    assert tiers(medium(0, is_embedding=True), medium(10, DECODED, is_embedding=True)) == [
        CacheTier.NONE,
        CacheTier.DECODED,
    ]
    assert tiers(medium(0, is_embedding=True), cached=16) == [CacheTier.PREFIX]


def test_several_completions_of_a_prompt_count_its_cached_tokens_once() -> None:
    usage = Usage()
    usage.add_prompt(
        0, LoadedPrompt(token_ids=[1] * 40, media=[], media_usage=MediaUsage(), seen=(medium(0), medium(10)))
    )
    for index, (cached, encoded) in enumerate([(0, [0]), (32, []), (32, [])]):
        usage.add_delta(0, Delta(index=index, stats=RequestStats(num_cached_tokens=cached, encoded_media=encoded)))
        usage.add_delta(0, Delta(index=index, token_ids=[5], stats=RequestStats(num_cached_tokens=cached)))
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (40, 0, 3)
    assert (usage.num_encoded_media, usage.encoder_cache_hits) == (1, 1)
