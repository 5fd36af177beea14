"""Cached media: no repeated fetches or decodings, separate cache namespaces, and references by uuid."""

import asyncio
import base64
from dataclasses import replace
from hashlib import sha256
from typing import Any
from urllib.parse import quote_from_bytes

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.embeddings.embeddings import EmbeddingSpec
from glimpse.media.embeddings.loader import EmbeddingLoader
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.input_loader import load_inputs
from glimpse.media.inputs import ImageInput
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import (
    CachedSource,
    DataSource,
    FrameSources,
    Source,
    UploadSource,
    UrlSource,
    parse_url_text,
)
from tests.media.caching import CachingLoader, caching_loader
from tests.media.images import encode, scene
from tests.media.sizes import num_tokens
from tests.media.videos import greys, video
from tests.media.web import Web, respond, serve

PNG = encode(scene(100, 60), "PNG")
OTHER_PNG = encode(scene(100, 60, seed=1), "PNG")
PNGS = [encode(PIL.Image.fromarray(frame), "PNG") for frame in greys(8)]
VIDEO = video(greys(8))
ALL = VideoOptions(num_frames=8)
FRESH = {"Cache-Control": "public, max-age=60"}
BY_UUID = CachedSource(uuid="cat")


def url(web: Web, path: str = "/cat") -> UrlSource:
    source = parse_url_text(web.url(path))
    assert isinstance(source, UrlSource)
    return source


def counts(usage: MediaUsage) -> tuple[int, int, int, int]:
    """Returns the numbers of fetches, fetch cache hits, decodings and decode cache hits."""
    return usage.num_fetched, usage.num_fetch_cache_hits, usage.num_decoded, usage.num_decode_cache_hits


async def sources_of(file: bytes, caching: CachingLoader, web: Web) -> list[Source]:
    web.answers["/cat"] = respond(file)
    upload = await caching.uploads.store("", MediaFile(digest=sha256(file).digest(), data=file), ttl_seconds=None)
    text = base64.b64encode(file).decode()
    texts = (text, "data:image/png;base64," + text, f"data:,{quote_from_bytes(file)}")
    return [DataSource(data=file), url(web), *map(parse_url_text, texts), UploadSource(handle=upload.handle)]


async def refusal(loading: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await loading
    return caught.value


async def test_cached_file_is_not_decoded_again(caching: CachingLoader, web: Web) -> None:
    source_images = [(await caching.image(source))[0] for source in await sources_of(PNG, caching, web)]
    assert len({source_image.key for source_image in source_images}) == 1
    assert caching.decoders.num_decoded == 1


@given(
    seed=st.integers(0, 1 << 32),
    sides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    position=st.floats(0, 1, exclude_max=True),
    step=st.integers(0, 255),
    transposed=st.booleans(),
)
@settings(max_examples=12)
def test_image_keys_are_equal_only_for_equal_pixels(
    seed: int, sides: tuple[int, int], position: float, step: int, transposed: bool
) -> None:
    height, width = (28 * side for side in sides)  # not resized at these sizes
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    changed = pixels.copy()
    changed.reshape(-1)[int(position * changed.size)] ^= step
    other = changed.reshape(width, height, 3) if transposed else changed

    async def keys() -> list[set[bytes]]:
        async with caching_loader() as caching, serve() as web:
            return [
                {(await caching.image(each, min_pixels=784))[0].key for each in await sources_of(file, caching, web)}
                for file in (encode(PIL.Image.fromarray(each), "PNG") for each in (pixels, other))
            ]

    first, second = asyncio.run(keys())
    assert len(first) == len(second) == 1
    assert (first == second) == np.array_equal(pixels, other)


async def test_different_options_are_cached_separately(caching: CachingLoader) -> None:
    data = DataSource(data=encode(scene(300, 300), "PNG"))
    options: list[dict[str, Any]] = [{}, {"max_pixels": 9 * 28 * 28}, {"max_pixels": 25 * 28 * 28}]
    source_images = [(await caching.image(data, **bounds))[0] for bounds in options]
    assert [num_tokens(source_image) for source_image in source_images] == [49, 9, 25]
    loaded_videos = [
        await caching.loaded_video(DataSource(data=VIDEO), VideoOptions(num_frames=number)) for number in (4, 6, 4)
    ]
    assert [counts(usage) for _, usage in loaded_videos] == [(0, 0, 1, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    assert [len(loaded_video.pixels) for loaded_video, _ in loaded_videos] == [4, 6, 4]


async def test_frame_order_and_rate_are_part_of_the_cache_key(caching: CachingLoader) -> None:
    frames = [DataSource(data=png) for png in PNGS[:3]]
    first, again, rated, backwards = [
        await caching.loaded_video(FrameSources(frames=tuple(some)), options)
        for some, options in (
            (frames, VideoOptions()),
            (frames, VideoOptions()),
            (frames, VideoOptions(fps=2)),
            (frames[::-1], VideoOptions()),
        )
    ]
    assert [counts(usage)[2:] for _, usage in (first, again, rated, backwards)] == [(1, 0), (0, 1), (1, 0), (1, 0)]
    assert (first[0].frame_seconds, rated[0].frame_seconds) == ((), (0, 0.5, 1))
    assert first[0].key == again[0].key == rated[0].key != backwards[0].key


async def test_concurrent_requests_fetch_and_decode_an_image_once(caching: CachingLoader, web: Web) -> None:
    web.answers["/cat"] = respond(PNG)
    loaded = await asyncio.gather(*(caching.image(url(web)) for _ in range(10)))
    assert len({source_image.key for source_image, _ in loaded}) == 1
    assert (len(web.requests), caching.decoders.num_decoded) == (1, 1)
    assert sorted(counts(usage) for _, usage in loaded) == [(0, 1, 0, 1)] * 9 + [(1, 0, 1, 0)]


async def test_cache_namespaces_do_not_share_fetches(caching: CachingLoader, web: Web) -> None:
    web.answers["/cat"] = respond(PNG, headers=FRESH)
    await asyncio.gather(*(caching.image(url(web), namespace) for namespace in ("a", "b")))
    assert (len(web.requests), caching.decoders.num_decoded) == (2, 2)


async def test_download_is_cached_for_its_max_age(caching: CachingLoader, web: Web) -> None:
    web.answers["/cat"] = respond(PNG, headers=FRESH)
    for now, num_requests in ((0, 1), (59, 1), (60, 2), (61, 2)):
        caching.clock.now = 1000.0 + now
        assert num_tokens((await caching.image(url(web)))[0])
        assert len(web.requests) == num_requests
    _, usage = await caching.image(url(web))
    assert counts(usage) == (0, 1, 0, 1)
    assert usage.fetch_seconds < 5


@pytest.mark.parametrize("headers", [{}, {"Cache-Control": "no-store"}, {"Cache-Control": "private, max-age=60"}])
async def test_download_without_freshness_is_not_cached(
    caching: CachingLoader, web: Web, headers: dict[str, str]
) -> None:
    web.answers["/cat"] = respond(PNG, headers=headers)
    for _ in range(2):
        await caching.image(url(web))
    assert (len(web.requests), caching.decoders.num_decoded) == (2, 1)


async def test_temporary_redirect_is_followed_again(caching: CachingLoader, web: Web) -> None:
    web.answers["/cat"] = respond(PNG, headers=FRESH)
    web.answers["/away"] = respond(b"", status=302, headers={"Location": "/cat"})
    for _ in range(2):
        await caching.image(url(web, "/away"))
    assert len(web.requests) == 4


async def test_cached_download_is_held_to_the_callers_limit(caching: CachingLoader, web: Web) -> None:
    web.answers["/video"] = respond(VIDEO, headers=FRESH)
    await caching.loaded_video(url(web, "/video"), ALL)
    got = caching.store.fetch("", web.url("/video"), len(VIDEO) - 1, _refuse)
    assert (await refusal(got)).code == MediaErrorCode.TOO_LARGE


async def _refuse() -> tuple[bytes, float]:
    raise MediaError(MediaErrorCode.TOO_LARGE, "too large")


async def test_image_by_uuid_can_have_other_bounds(caching: CachingLoader) -> None:
    data = DataSource(data=encode(scene(300, 300), "PNG"))
    sent, _ = await caching.image(data, uuid="cat")
    again, usage = await caching.image(BY_UUID)
    assert (again.key, counts(usage)) == (sent.key, (0, 0, 0, 1))
    smaller, usage = await caching.image(BY_UUID, max_pixels=9 * 28 * 28)
    assert (num_tokens(smaller), counts(usage)) == (9, (0, 0, 1, 0))


async def test_origins_say_what_was_cached_of_each_medium(caching: CachingLoader, web: Web) -> None:
    web.answers["/cat"] = respond(PNG, headers=FRESH)
    embeddings = EmbeddingLoader(
        spec=EmbeddingSpec(kinds=frozenset(), hidden_size=64, merge_size=2), store=caching.store
    )

    async def origins(*inputs: ImageInput) -> list[tuple[bool, bool]]:
        with caching.loader.batch() as batch:
            await load_inputs([inputs], loader=caching.loader, embeddings=embeddings, batch=batch)
            return [(origin.had_files, origin.was_decoded) for origin in batch.usage.origins]

    sent = ImageInput(field="a", source=DataSource(data=OTHER_PNG), uuid="dog")
    fetched = ImageInput(field="b", source=url(web))
    assert await origins(fetched, sent) == [(False, False)] * 2
    assert await origins(fetched, sent) == [(True, True), (False, True)]
    named = ImageInput(field="c", source=CachedSource(uuid="dog"), max_pixels=28 * 28 * 4)
    # What is named is loaded last, and keeps its place.
    assert await origins(named, replace(fetched, max_pixels=28 * 28 * 4), replace(sent, max_pixels=28 * 28)) == [
        (True, False),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize("is_file", [True, False])
async def test_video_by_uuid_can_have_other_options(caching: CachingLoader, is_file: bool) -> None:
    frames = FrameSources(frames=tuple(DataSource(data=png) for png in PNGS))
    sent, _ = await caching.loaded_video(DataSource(data=VIDEO) if is_file else frames, VideoOptions(), uuid="cat")
    again, _ = await caching.loaded_video(BY_UUID, VideoOptions())
    fewer, _ = await caching.loaded_video(BY_UUID, VideoOptions(num_frames=2))
    assert again.key == sent.key
    assert len(fewer.pixels) == 2
    if not is_file:
        error = await refusal(caching.loaded_video(BY_UUID, VideoOptions(end_seconds=1)))
        assert error.code == MediaErrorCode.INVALID_PARAMETER


async def test_invalid_image_is_not_cached_under_its_uuid(caching: CachingLoader, web: Web) -> None:
    web.answers["/cat"] = respond(PNG[:60])
    assert (await refusal(caching.image(url(web), uuid="cat"))).code == MediaErrorCode.INVALID_MEDIA
    assert (await refusal(caching.image(BY_UUID))).code == MediaErrorCode.NOT_CACHED
    web.answers["/cat"] = respond(PNG)
    assert num_tokens((await caching.image(url(web), uuid="cat"))[0])


async def test_unsampled_frames_are_not_cached(caching: CachingLoader) -> None:
    frames = FrameSources(frames=tuple(DataSource(data=png) for png in PNGS))
    await caching.loaded_video(frames, VideoOptions(num_frames=2), uuid="cat")
    assert (await refusal(caching.loaded_video(BY_UUID, ALL))).code == MediaErrorCode.NOT_CACHED


async def test_uuids_are_separate_for_each_namespace_and_kind(caching: CachingLoader) -> None:
    await caching.image(DataSource(data=PNG), "a", uuid="cat")
    for loading in (caching.image(BY_UUID), caching.image(BY_UUID, "b"), caching.loaded_video(BY_UUID, ALL, "a")):
        error = await refusal(loading)
        assert error.code == MediaErrorCode.NOT_CACHED
        assert "with this uuid" in error.message


async def test_uuid_refers_to_the_medium_sent_last(caching: CachingLoader) -> None:
    await caching.image(DataSource(data=PNG), uuid="cat")
    newer, _ = await caching.image(DataSource(data=OTHER_PNG), uuid="cat")
    assert (await caching.image(BY_UUID))[0].key == newer.key


async def test_url_with_uuid_is_fetched_once(caching: CachingLoader, web: Web) -> None:
    web.answers |= {"/cat": respond(PNG), "/dog": respond(OTHER_PNG)}
    first, _ = await caching.image(url(web), uuid="cat")
    again, usage = await caching.image(url(web), uuid="cat")
    assert (again.key, counts(usage), len(web.requests)) == (first.key, (0, 1, 0, 1), 1)
    other, _ = await caching.image(url(web, "/dog"), uuid="cat")
    assert other.key != first.key
    assert (await caching.image(BY_UUID))[0].key == other.key


async def test_disabled_cache_stores_nothing_and_refuses_uuids() -> None:
    async with caching_loader(max_bytes=0) as caching:
        for _ in range(2):
            await caching.image(DataSource(data=PNG), uuid="cat")
        error = await refusal(caching.image(BY_UUID))
        assert (error.code, caching.decoders.num_decoded) == (MediaErrorCode.NOT_CACHED, 2)
        assert "--media-cache-bytes" in error.message
        assert caching.store.num_bytes == 0


async def test_cache_stays_within_its_budget() -> None:
    async with caching_loader(max_bytes=200_000) as caching:
        for seed in range(12):
            data = DataSource(data=encode(scene(100, 60, seed=seed), "PNG"))
            await caching.image(data, uuid=f"cat {seed}")
            assert caching.store.num_bytes <= 200_000
        assert num_tokens((await caching.image(CachedSource(uuid="cat 11")))[0])
        assert (await refusal(caching.image(CachedSource(uuid="cat 0")))).code == MediaErrorCode.NOT_CACHED


async def test_cancelled_request_does_not_cancel_a_shared_fetch(caching: CachingLoader, web: Web) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await may_answer.wait()
        await respond(PNG)(reader, writer)

    web.answers["/cat"] = answer
    loads = [asyncio.create_task(caching.image(url(web))) for _ in range(4)]
    await asked.wait()
    loads[0].cancel()
    may_answer.set()
    results = await asyncio.gather(*loads, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert not any(isinstance(result, BaseException) for result in results[1:])
    assert len(web.requests) == 1


async def test_memory_budget_covers_loading_and_loaded_media(web: Web) -> None:
    web.answers["/cat"] = respond(PNG)
    image_bytes = 56 * 112 * 3
    async with caching_loader(memory_budget=MemoryBudget(max_bytes=image_bytes + len(PNG))) as caching:
        with caching.loader.batch(client="a") as first, caching.loader.batch(client="b") as second:
            await caching.loader.load_image(DataSource(data=PNG), batch=first)
            assert caching.memory_budget.num_bytes == image_bytes
            await caching.loader.load_image(url(web), batch=second)
            assert caching.memory_budget.num_bytes == image_bytes  # the same image counts once
            assert (await refusal(caching.image(DataSource(data=OTHER_PNG)))).code == MediaErrorCode.OVERLOADED
        await caching.image(DataSource(data=OTHER_PNG))
    async with caching_loader(memory_budget=MemoryBudget(max_bytes=len(PNG) - 1)) as caching:
        assert (await refusal(caching.image(url(web)))).code in (MediaErrorCode.OVERLOADED, MediaErrorCode.TOO_LARGE)


async def test_unknown_or_expired_upload_is_not_cached(caching: CachingLoader) -> None:
    upload = await caching.uploads.store("a", MediaFile(digest=sha256(PNG).digest(), data=PNG), ttl_seconds=None)
    source = UploadSource(handle=upload.handle)
    assert (await refusal(caching.image(source))).code == MediaErrorCode.NOT_CACHED
    assert num_tokens((await caching.image(source, "a"))[0])
    caching.clock.now += 60
    error = await refusal(caching.image(source, "a"))
    assert (error.code, "upload the file again" in error.message) == (MediaErrorCode.NOT_CACHED, True)
