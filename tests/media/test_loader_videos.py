"""The media loader with videos: all sources, limits, and cancellation."""

import asyncio
import base64
import threading

import PIL.Image
import pytest

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.media.limits import FETCH_TIMEOUTS, MAX_FILE_BYTES
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import DataSource, FrameSources, Source, VideoSource, parse_url_text, parse_video_text
from tests.media.images import encode, png_header, scene
from tests.media.loaders import make_loader
from tests.media.videos import greys, numbers, video
from tests.media.web import Web, respond, stall_after

GREYS = greys(8)
VIDEO = video(GREYS)
PNGS = [encode(PIL.Image.fromarray(frame), "PNG") for frame in GREYS]
ALL = VideoOptions(num_frames=8)


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def frames(*sources: Source) -> FrameSources:
    return FrameSources(frames=sources)


async def refusal(loader: MediaLoader, source: VideoSource, options: VideoOptions = ALL) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await loader.load_video(source, options)
    return caught.value


async def test_all_file_sources_give_the_same_video(loader: MediaLoader, web: Web) -> None:
    web.answers["/video"] = respond(VIDEO, headers={"Content-Type": "text/plain"})
    sources = [
        DataSource(data=VIDEO),
        parse_video_text(web.url("/video")),
        parse_video_text(as_base64(VIDEO)),
        parse_video_text("data:video/mp4;base64," + as_base64(VIDEO)),
        parse_video_text("data:image/png;base64," + as_base64(VIDEO)),
    ]
    loaded_videos = [await loader.load_video(source, ALL) for source in sources]
    assert len({loaded_video.key for loaded_video in loaded_videos}) == 1
    assert numbers(loaded_videos[0].pixels) == list(range(8))


async def test_all_frame_sources_give_the_same_video(loader: MediaLoader, web: Web) -> None:
    for index, png in enumerate(PNGS):
        web.answers[f"/{index}"] = respond(png)
    sources = [
        frames(*(DataSource(data=png) for png in PNGS)),
        frames(*(parse_url_text(web.url(f"/{index}")) for index in range(8))),
        parse_video_text("data:video/jpeg;base64," + ",".join(map(as_base64, PNGS))),
    ]
    loaded_videos = [await loader.load_video(source, VideoOptions()) for source in sources]
    assert len({loaded_video.key for loaded_video in loaded_videos}) == 1
    assert numbers(loaded_videos[0].pixels) == list(range(8))
    assert loaded_videos[0].grid[0] == 4


async def test_fetches_only_sampled_frames(loader: MediaLoader, web: Web) -> None:
    for index, png in enumerate(PNGS):
        web.answers[f"/{index}"] = respond(png)
    source = frames(*(parse_url_text(web.url(f"/{index}")) for index in range(8)))
    loaded_video = await loader.load_video(source, VideoOptions(num_frames=4))
    assert numbers(loaded_video.pixels) == [0, 2, 4, 6]
    assert len(web.requests) == 4


async def test_refuses_invalid_options_before_fetching(loader: MediaLoader, web: Web) -> None:
    options = VideoOptions(fps=-1)
    for source in (parse_video_text(web.url("/cat.png")), frames(parse_url_text(web.url("/cat.png")))):
        assert (await refusal(loader, source, options)).code == MediaErrorCode.INVALID_PARAMETER
    assert web.requests == []


async def test_refuses_private_addresses_for_videos(loader: MediaLoader) -> None:
    for source in (parse_video_text("http://10.0.0.1/x.mp4"), frames(parse_url_text("http://10.0.0.1/x.png"))):
        assert (await refusal(loader, source)).code == MediaErrorCode.URL_REFUSED


async def test_refuses_too_large_files_from_every_source(web: Web) -> None:
    web.answers["/video"] = respond(VIDEO)
    loader = make_loader(max_file_bytes=MAX_FILE_BYTES | {MediaKind.VIDEO: len(VIDEO) - 1})
    for source in (DataSource(data=VIDEO), parse_video_text(web.url("/video"))):
        error = await refusal(loader, source)
        assert (error.code, str(len(VIDEO) - 1) in error.message) == (MediaErrorCode.TOO_LARGE, True)
    await loader.close()


async def test_limits_the_total_bytes_of_frames(web: Web) -> None:
    web.answers["/frame"] = respond(PNGS[0])
    for limit in (len(PNGS[0]) * 5 - 1, len(PNGS[0]) * 4):
        loader = make_loader(max_file_bytes=MAX_FILE_BYTES | {MediaKind.VIDEO: limit})
        for source in (DataSource(data=PNGS[0]), parse_url_text(web.url("/frame"))):
            assert (await refusal(loader, frames(*[source] * 5), VideoOptions())).code == MediaErrorCode.TOO_LARGE
            assert await loader.load_video(frames(*[source] * 4), VideoOptions())
        await loader.close()


async def test_limits_the_total_pixels_of_frames(loader: MediaLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.media.decoding.video_frames._MAX_LISTED_PIXELS", 64 * 48 * 5)
    sources = [DataSource(data=png) for png in PNGS]
    assert (await refusal(loader, frames(*sources[:6]), VideoOptions())).code == MediaErrorCode.TOO_LARGE
    assert await loader.load_video(frames(*sources[:5]), VideoOptions())


async def test_all_frames_share_one_timeout(web: Web) -> None:
    web.answers["/late"] = stall_after(b"HTTP/1.1 200 OK\r\n")
    loader = make_loader(fetch_timeouts=FETCH_TIMEOUTS | {MediaKind.VIDEO: 0.05})
    for source in (parse_video_text(web.url("/late")), frames(*[parse_url_text(web.url("/late"))] * 9)):
        assert (await refusal(loader, source)).code == MediaErrorCode.FETCH_TIMEOUT
    await loader.close()


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (png_header(20000, 20000), MediaErrorCode.TOO_LARGE, "20000×20000"),
        (b"hello", MediaErrorCode.UNSUPPORTED_FORMAT, "got an unknown format"),
        (VIDEO, MediaErrorCode.UNSUPPORTED_FORMAT, "expected an image"),
        (PNGS[0][:60], MediaErrorCode.INVALID_MEDIA, "corrupt"),
        (
            encode(scene(64, 50), "PNG"),
            MediaErrorCode.INVALID_MEDIA,
            "got 64×48 pixels for frame 0 and 64×50 for frame 2",
        ),
    ],
)
async def test_invalid_frames_have_specific_errors(
    loader: MediaLoader, data: bytes, code: MediaErrorCode, words: str
) -> None:
    sources = [DataSource(data=file) for file in (PNGS[0], PNGS[1], data)]
    error = await refusal(loader, frames(*sources), VideoOptions())
    assert (error.code, words in error.message) == (code, True)


async def test_cancelling_a_load_stops_decoding(loader: MediaLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def decode(*_: object, stopped: object) -> None:
        begun.set()
        assert callable(stopped)
        while not stopped():
            pass
        ended.set()

    monkeypatch.setattr("glimpse.media.decoding.decode.video_from_file", decode)
    task = asyncio.create_task(loader.load_video(DataSource(data=VIDEO), ALL))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    assert await asyncio.to_thread(ended.wait, 20)
    with pytest.raises(asyncio.CancelledError):
        await task
