"""Media policy of the offline API: allowed sources, time limits and decoding options."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from glimpse.media.errors import MediaErrorCode
from glimpse.media.kind import MediaKind
from glimpse.offline.llm import LLM, InputError, SamplingParams
from glimpse.offline.media.media_policy import parse_rules
from tests.engine.offline.llm_inputs import IMAGE, PLACEHOLDER, image_pil, load, png, text, user
from tests.media.videos import greys, video
from tests.media.web import Web, redirect, respond, serve, stall_after

GREEDY = SamplingParams(temperature=0, max_tokens=8)
ANY_PORT = range(1, 1 << 16)


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serve() as server:
        server.answers["/cat.png"] = respond(png(IMAGE), headers={"Cache-Control": "max-age=60"})
        yield server


def image_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def refusal(llm: LLM, part: dict[str, Any]) -> MediaErrorCode | None:
    with pytest.raises(InputError) as caught:
        llm.chat(user(part), GREEDY)
    return caught.value.code


def test_reads_files_in_the_allowed_folder_only(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder, outside = tmp_path / "media", tmp_path / "cat.png"
    folder.mkdir()
    outside.write_bytes(png(IMAGE))
    (folder / "cat.png").write_bytes(png(IMAGE))
    (folder / "video.mp4").write_bytes(video(greys(4, width=56, height=56)))
    (folder / "link.png").symlink_to(outside)
    llm = load(tiny_checkpoint, allowed_local_media_path=folder)
    expected, by_url = (
        llm.chat(user(part, text("the")), GREEDY)[0]
        for part in (image_pil(IMAGE), image_url(f"file://{folder}/cat.png"))
    )
    assert by_url.outputs == expected.outputs
    data = {"image": f"file://{folder}/cat.png"}
    assert llm.generate({"prompt": PLACEHOLDER, "multi_modal_data": data}, GREEDY)
    assert llm.chat(user({"type": "video_url", "video_url": {"url": f"file://{folder}/video.mp4"}}), GREEDY)
    for path in (outside, folder / "link.png", folder / ".." / "cat.png", "/etc/passwd"):
        assert refusal(llm, image_url(f"file://{path}")) is MediaErrorCode.URL_REFUSED, path
    assert refusal(llm, image_url(f"file://{folder}/dog.png")) is MediaErrorCode.FETCH_FAILED


@pytest.mark.parametrize(
    ("variables", "timeouts", "seconds"),
    [
        ({}, {}, 5),
        ({"GLIMPSE_IMAGE_FETCH_TIMEOUT": "1.5"}, {}, 1.5),
        ({"VLLM_IMAGE_FETCH_TIMEOUT": "2"}, {}, 2),
        ({"VLLM_IMAGE_FETCH_TIMEOUT": "2", "GLIMPSE_IMAGE_FETCH_TIMEOUT": "1.5"}, {}, 1.5),
        ({"GLIMPSE_IMAGE_FETCH_TIMEOUT": "1.5"}, {"image": 3}, 3),
    ],
)
def test_environment_variables_set_time_outs(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], timeouts: dict[str, float], seconds: float
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rules = parse_rules(
        allowed_local_media_path=None, allowed_media_domains=None, allowed_media_networks=(), allowed_media_ports=(),
        fetch_timeouts=timeouts, media_io_kwargs={}, mm_processor_kwargs={}, max_cache_bytes=0,
    )  # fmt: skip
    assert rules.fetch_timeouts == {
        MediaKind.IMAGE: seconds,
        MediaKind.VIDEO: 30,
        MediaKind.AUDIO: 10,
        MediaKind.DOCUMENT: 10,
    }


def test_names_the_environment_variable_that_is_refused(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    monkeypatch.setenv("GLIMPSE_VIDEO_FETCH_TIMEOUT", "soon")
    with pytest.raises(
        InputError, match="'GLIMPSE_VIDEO_FETCH_TIMEOUT': expected a number of seconds above 0, got 'soon'"
    ):
        load(tiny_checkpoint)


async def test_fetches_urls_according_to_the_policy(tiny_checkpoint: Path, web: Web) -> None:
    web.answers |= {"/away": redirect("http://localhost:1/"), "/slow": stall_after(b"HTTP/1.1 200 -\r\n\r\n")}
    rules = {"allowed_media_networks": ["127.0.0.0/8"], "allowed_media_ports": [web.port]}
    timeouts = {"image": 0.2}
    llm = load(tiny_checkpoint, **rules, allowed_media_domains=["127.0.0.1"], fetch_timeouts=timeouts)

    async def ask(part: dict[str, Any]) -> Any:
        return await asyncio.to_thread(llm.chat, user(part, text("the")), GREEDY)

    assert (await ask(image_url(web.url("/cat.png"))))[0].outputs == (await ask(image_pil(IMAGE)))[0].outputs
    await ask(image_url(web.url("/cat.png")))
    assert len(web.requests) == 1
    for url, code in (
        (web.url("/slow"), MediaErrorCode.FETCH_TIMEOUT),
        (web.url("/away"), MediaErrorCode.URL_REFUSED),
        (web.url("/cat.png", host="localhost"), MediaErrorCode.URL_REFUSED),
        (f"http://127.0.0.1:{web.port % 60_000 + 1}/cat.png", MediaErrorCode.URL_REFUSED),
    ):
        assert await asyncio.to_thread(refusal, llm, image_url(url)) is code, url


def test_private_addresses_are_refused_by_default(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint)
    for url in ("http://127.0.0.1/", "http://10.0.0.1/", "http://169.254.169.254/", "http://[::1]/", "http://a.b:22/"):
        assert refusal(llm, image_url(url)) is MediaErrorCode.URL_REFUSED, url


def test_transparent_pixels_use_the_requested_background(tiny_checkpoint: Path) -> None:
    clear = PIL.Image.new("RGBA", (56, 56))
    for colour in ((255, 255, 255), (0, 0, 255)):
        options = {} if colour == (255, 255, 255) else {"image": {"rgba_background_color": list(colour)}}
        llm = load(tiny_checkpoint, media_io_kwargs=options)
        parts = [image_pil(clear), image_pil(PIL.Image.new("RGB", (56, 56), colour))]
        shown, plain = (llm.chat(user(part, text("the " * 40)), GREEDY)[0] for part in parts)
        # Both have the same key in the caches.
        assert plain.num_cached_tokens > shown.num_cached_tokens == 0
        assert plain.outputs == shown.outputs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_local_media_path": "/nowhere"}, "allowed_local_media_path': expected a folder"),
        ({"allowed_media_domains": "a.b"}, "allowed_media_domains': expected a list"),
        ({"allowed_media_domains": ["*.b"]}, "allowed_media_domains': expected a full host name"),
        ({"allowed_media_networks": ["10.0.0.1/8"]}, "allowed_media_networks': "),
        ({"fetch_timeouts": {"smell": 1}}, r"fetch_timeouts\.smell': unknown field"),
        ({"fetch_timeouts": {"image": 0}}, r"fetch_timeouts\.image': expected a number of seconds"),
        ({"media_io_kwargs": {"audio": {}}}, r"media_io_kwargs\.audio': unknown field"),
        ({"media_io_kwargs": {"video": {"size": 1}}}, r"media_io_kwargs\.video\.size': unknown field"),
        ({"media_io_kwargs": {"video": {"fps": 1}}, "mm_processor_kwargs": {"num_frames": 2}}, "got them in both"),
        (
            {"mm_processor_kwargs": {"max_pixels": 1 << 40}},
            r"mm_processor_kwargs\.max_pixels': expected a smaller integer",
        ),
        ({"limit_mm_per_prompt": {"image": "2"}}, r"limit_mm_per_prompt\.image': expected an integer, at least 0"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": [0, 0]}}}, "expected from 3 to 3 elements"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 256]}}}, "expected red, green and blue"),
    ],
)
def test_names_invalid_options(tiny_checkpoint: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tiny_checkpoint, **options)
