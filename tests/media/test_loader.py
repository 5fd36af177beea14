"""The media loader with images: all sources, limits, and a responsive event loop."""

import asyncio
import base64
import threading
from dataclasses import replace
from urllib.parse import quote

import pytest

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.limits import MAX_FILE_BYTES
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.image import prepare_image
from glimpse.media.sources.source import DataSource, parse_url_text
from tests.media.images import encode, png_header, scene
from tests.media.loaders import PROCESSING, make_loader
from tests.media.sizes import num_tokens
from tests.media.web import Web, respond


async def test_all_sources_give_the_same_image(loader: MediaLoader, web: Web) -> None:
    image = scene(100, 60)
    data = encode(image, "PNG")
    web.answers["/cat"] = respond(data, headers={"Content-Type": "text/plain"})
    text = base64.b64encode(data).decode()
    sources = [
        DataSource(data=data),
        parse_url_text(web.url("/cat")),
        parse_url_text(text),
        parse_url_text(base64.urlsafe_b64encode(data).decode()),
        parse_url_text("data:image/png;base64," + text),
        parse_url_text("data:image/jpeg," + quote(data)),
    ]
    loaded = [await loader.load_image(source) for source in sources]
    expected = prepare_image(image, PROCESSING)
    assert {source_image.key for source_image in loaded} == {expected.key}
    assert all((source_image.pixels == expected.pixels).all() for source_image in loaded)


async def test_applies_the_requests_bounds(loader: MediaLoader) -> None:
    source = DataSource(data=encode(scene(200, 200), "PNG"))
    assert num_tokens(await loader.load_image(source)) == 49
    assert num_tokens(await loader.load_image(source, min_pixels=None, max_pixels=9 * 28 * 28)) == 9


async def test_refuses_invalid_bounds_before_fetching(loader: MediaLoader, web: Web) -> None:
    with pytest.raises(MediaError) as caught:
        await loader.load_image(parse_url_text(web.url("/cat")), min_pixels=2000, max_pixels=1000)
    assert (caught.value.code, web.requests) == (MediaErrorCode.INVALID_PARAMETER, [])


async def test_refuses_too_large_files_from_every_source(web: Web) -> None:
    data = encode(scene(64, 64), "PNG")
    web.answers["/cat"] = respond(data)
    loader = make_loader(max_file_bytes=MAX_FILE_BYTES | {MediaKind.IMAGE: len(data) - 1})
    for source in (DataSource(data=data), parse_url_text(web.url("/cat"))):
        with pytest.raises(MediaError, match=f"at most {len(data) - 1} bytes") as caught:
            await loader.load_image(source)
        assert caught.value.code == MediaErrorCode.TOO_LARGE
    await loader.close()


async def test_refuses_too_large_dimensions(loader: MediaLoader) -> None:
    with pytest.raises(MediaError, match="20000×20000") as caught:
        await loader.load_image(DataSource(data=png_header(20000, 20000)))
    assert caught.value.code == MediaErrorCode.TOO_LARGE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", MediaErrorCode.INVALID_MEDIA),
        (b"hello", MediaErrorCode.UNSUPPORTED_FORMAT),
        (b"\0\0\0\x20ftypisom", MediaErrorCode.UNSUPPORTED_FORMAT),
        (encode(scene(64, 64), "JPEG")[:400], MediaErrorCode.INVALID_MEDIA),
        (encode(scene(10000, 1), "PNG"), MediaErrorCode.INVALID_MEDIA),
    ],
)
async def test_invalid_files_have_specific_error_codes(loader: MediaLoader, data: bytes, code: MediaErrorCode) -> None:
    with pytest.raises(MediaError) as caught:
        await loader.load_image(DataSource(data=data))
    assert caught.value.code == code


async def test_transparent_pixels_use_the_configured_background() -> None:
    image = scene(56, 56).convert("RGBA")
    image.putalpha(0)
    source = DataSource(data=encode(image, "PNG"))
    for background in [(255, 255, 255), (1, 2, 3)]:
        loader = make_loader(replace(PROCESSING, background=background))
        assert ((await loader.load_image(source)).pixels == background).all()
        await loader.close()


async def test_limits_concurrent_fetches(web: Web) -> None:
    data = encode(scene(56, 56), "PNG")
    pair = asyncio.Barrier(2)
    now = most = 0

    async def answer_in_pairs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await pair.wait()
        now -= 1
        await respond(data)(reader, writer)

    paths = [f"/cat{index}" for index in range(6)]
    web.answers |= dict.fromkeys(paths, answer_in_pairs)
    loader = make_loader(max_fetches=2)
    source_images = await asyncio.gather(*(loader.load_image(parse_url_text(web.url(path))) for path in paths))
    assert (len(source_images), most) == (6, 2)
    await loader.close()


async def test_decoding_does_not_block_the_event_loop(loader: MediaLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def wait_for_the_loop(*args: object, **kwargs: object) -> object:
        assert released.wait(60), "the event loop must run during decoding"
        return prepare_image(*args, **kwargs)  # pyright: ignore[reportArgumentType] # passed on as they are

    monkeypatch.setattr("glimpse.media.decoding.decode.prepare_image", wait_for_the_loop)
    task = asyncio.create_task(loader.load_image(DataSource(data=encode(scene(56, 56), "PNG"))))
    asyncio.get_running_loop().call_later(0.02, released.set)
    assert num_tokens(await task) == 4


async def test_cancelled_loads_do_not_affect_others(loader: MediaLoader) -> None:
    source = DataSource(data=encode(scene(600, 400), "PNG"))
    tasks = [asyncio.create_task(loader.load_image(source)) for _ in range(8)]
    await asyncio.sleep(0.005)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    expected = (await loader.load_image(source)).key
    for result in results:
        assert isinstance(result, asyncio.CancelledError) or getattr(result, "key", None) == expected
    assert not any(isinstance(result, asyncio.CancelledError) for result in results[1::2])
