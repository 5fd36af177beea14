"""Loading audio: every source gives the same input; limits of time and bytes, uuids, and models without audio."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.limits import FETCH_TIMEOUTS, MAX_FILE_BYTES
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.audio_samples import audio_from_array
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.sources.source import CachedSource, DataSource, parse_url_text
from tests.media.audio import PROCESSING, audio_file, noise
from tests.media.loaders import FETCHER, MEDIA_PROCESSING
from tests.media.web import Web, respond, stall_after

SAMPLES = noise(1, 20_000)
WAV = audio_file(SAMPLES, 44_100)


def make_loader(**options: Any) -> MediaLoader:
    defaults: dict[str, Any] = {
        "processing": MediaProcessing(audio=PROCESSING),
        "decoders": Decoders(isolated=False),
    }
    return MediaLoader(fetcher=FETCHER, **(defaults | options))


@pytest.fixture
async def loader() -> AsyncIterator[MediaLoader]:
    loader = make_loader()
    yield loader
    await loader.close()


async def test_all_sources_give_the_same_audio(loader: MediaLoader, web: Web) -> None:
    web.answers["/bell"] = respond(WAV, headers={"Content-Type": "text/plain"})
    text = base64.b64encode(WAV).decode()
    urls = [web.url("/bell"), text, f"data:audio/mpeg;base64,{text}"]
    loaded = [await loader.load_audio(source) for source in (DataSource(data=WAV), *map(parse_url_text, urls))]
    assert {loaded_audio.key for loaded_audio in loaded} == {audio_from_array(SAMPLES, 44_100, PROCESSING).key}


async def test_isolated_decoder_gives_the_same_audio() -> None:
    loader = make_loader(decoders=Decoders())
    try:
        loaded_audio = await loader.load_audio(DataSource(data=WAV))
        assert loaded_audio.key == audio_from_array(SAMPLES, 44_100, PROCESSING).key
        with pytest.raises(MediaError, match="corrupt"):
            await loader.load_audio(DataSource(data=WAV[:30]))
    finally:
        await loader.close()


async def test_audio_is_cached_by_uuid(web: Web) -> None:
    loader = make_loader(store=MediaStore(max_bytes=64 << 20))
    sent = await loader.load_audio(DataSource(data=WAV), uuid="bell")
    assert await loader.load_audio(CachedSource(uuid="bell")) is sent
    with pytest.raises(MediaError) as caught:
        await loader.load_audio(CachedSource(uuid="gong"))
    assert caught.value.code is MediaErrorCode.NOT_CACHED
    await loader.close()


async def test_applies_the_audio_timeout(web: Web) -> None:
    web.answers["/slow"] = stall_after(b"HTTP/1.1 200 -\r\nContent-Length: 9\r\n\r\n")
    loader = make_loader(fetch_timeouts=FETCH_TIMEOUTS | {MediaKind.AUDIO: 0.1})
    with pytest.raises(MediaError) as caught:
        await loader.load_audio(parse_url_text(web.url("/slow")))
    assert caught.value.code is MediaErrorCode.FETCH_TIMEOUT
    await loader.close()


async def test_limits_audio_file_size(web: Web) -> None:
    loader = make_loader(max_file_bytes=MAX_FILE_BYTES | {MediaKind.AUDIO: len(WAV) - 1})
    with pytest.raises(MediaError) as caught:
        await loader.load_audio(DataSource(data=WAV))
    assert caught.value.code is MediaErrorCode.TOO_LARGE
    await loader.close()


async def test_refuses_audio_for_models_without_audio() -> None:
    loader = make_loader(processing=MEDIA_PROCESSING)
    with pytest.raises(MediaError, match="the model does not support audio input"):
        await loader.load_audio(DataSource(data=WAV))
    await loader.close()
