"""Sends all hostile inputs to a real server, which stays available and within its memory budget."""

import asyncio
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from glimpse.native.process_table import command_line, family, resident_bytes
from glimpse.v1 import chat_pb2_grpc, content_pb2
from tests.e2e.stack import Served
from tests.hostile.images import hostile_images
from tests.hostile.server import add_handlers
from tests.hostile.urls import hostile_urls
from tests.hostile.videos import hostile_videos
from tests.hostile.zone import HOST
from tests.media.web import Web, serve
from tests.server.requests import image_part, png, request, user, video_part
from tests.server.serving import served

BUDGET_BYTES = 3 << 29
"""1.5 GiB for the front end and its workers. Eight concurrent worst-case requests take 0.6 GiB."""
AT_ONCE = 8

Chat = chat_pb2_grpc.ChatServiceStub


@contextmanager
def hostile_web() -> Generator[Web]:
    """Runs the suite's web server in a thread."""
    started, stopped = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    webs: list[Web] = []

    async def run() -> None:
        async with serve(host=HOST) as web:
            add_handlers(web)
            webs.append(web)
            started.set()
            await stopped.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert started.wait(30)
    try:
        yield webs[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


class MemoryWatch:
    """Measures the peak memory of a process and its children without the engine."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_bytes = 0

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, _watched(self._pid))))


def _watched(pid: int) -> list[int]:
    """Returns the server and its workers."""
    return [pid, *(each for each in family(pid) if "media." in command_line(each))]


def _hostile_parts(port: int) -> dict[str, tuple[content_pb2.ContentPart, bool]]:
    """Returns a content part for each hostile input, and whether the request succeeds."""
    parts = {
        f"url {name}": (
            content_pb2.ContentPart(image=content_pb2.ImagePart(source=content_pb2.MediaSource(url=url.url))),
            url.code is None,
        )
        for name, url in hostile_urls(port).items()
    }
    parts |= {f"image {name}": (image_part(data), code is None) for name, (data, code) in hostile_images().items()}
    parts |= {
        f"video {name}": (video_part(data, max_pixels=28 * 28), code is None)
        for name, (data, code) in hostile_videos().items()
    }
    return parts


def _status(chat: Chat, part: content_pb2.ContentPart) -> grpc.StatusCode:
    try:
        chat.CreateChatCompletion(request(user(part, "What?"), max_completion_tokens=1), timeout=120)
    except grpc.RpcError as error:
        return error.code()  # pyright: ignore[reportAttributeAccessIssue] - errors of calls have a code
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with hostile_web() as running:
        yield running


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, web: Web) -> Iterator[Served]:
    flags = (
        "--max-model-len=4096",
        f"--allowed-media-networks={HOST}/32",
        f"--allowed-media-ports={web.port}",
        "--allowed-media-ports=80",
        "--allowed-media-ports=443",
        "--image-fetch-timeout=3",
    )
    prelude = "from tests.hostile.zone import install; install()"
    with served(tiny_checkpoint, tmp_path_factory.mktemp("hostile"), *flags, prelude=prelude) as running:
        yield running


def test_server_survives_all_hostile_inputs(server: Served, web: Web) -> None:
    parts = _hostile_parts(web.port)
    with server.channel() as channel, MemoryWatch(server.process.pid) as memory, ThreadPoolExecutor(AT_ONCE) as threads:
        chat = Chat(channel)
        plain = request(user(image_part(png()), "What is this?"))
        expected = chat.CreateChatCompletion(plain).choices
        statuses = dict(zip(parts, threads.map(lambda part: _status(chat, part[0]), parts.values()), strict=True))
        assert chat.CreateChatCompletion(plain, timeout=60).choices == expected
    assert {
        name: status
        for name, status in statuses.items()
        if status is not (grpc.StatusCode.OK if parts[name][1] else grpc.StatusCode.INVALID_ARGUMENT)
    } == {}
    assert 0 < memory.peak_bytes < BUDGET_BYTES
    assert server.metric("glimpse_engine_restarts_total") == 0
