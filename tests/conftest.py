"""What tests of several parts share: a tiny checkpoint, running stacks, and manners on a small machine.

The engine's tests run where the server's packages are missing too (`bench.gpu`), so only stacks import those.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import re
import signal

# A script's background jobs ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before OpenMP is loaded, here and in processes that tests start: threads that spin take the cores of the others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings

from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.paths import ROOT

if TYPE_CHECKING:
    from tests.e2e.media_host import MediaHost
    from tests.e2e.stack import Stack
    from tests.media.shared.redis_server import RedisServer

# Until all tests are imported and collected, which makes no garbage: looking for it is a third of the time.
gc.disable()
torch.set_num_threads(1)
# Before anyone imports Triton, which decides then how kernels run: without a GPU they are interpreted.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
# How long an example takes says nothing on a machine where others compute. CI repeats the same examples, so that it
# fails for what was changed; everyone else tries new ones.
settings.register_profile("glimpse", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("glimpse")


_WAITING = ("page", "e2e", "models", "clients", "wheel", "server", "gateway", "client", "hostile")
"""Folders whose files wait for servers most of their time. Files of the first take longest: begun last, one of them
would run alone at the end."""

_SHARING = ("client", "e2e", "page", "server/services")
"""Folders whose files share servers: one process runs those that start none of their own."""
_STARTS_ITS_OWN = re.compile(r"start_\w*stack\(|running_mesh\(|served\(")

ASYNC_TEST_SECONDS = 150.0
"""An asynchronous test that waits longer than this fails where it waits."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out files, and at once those that share servers, which each process would start again."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _together(super()._split_scope(nodeid))

    return Scheduling(config, log)


@functools.cache
def _together(file: str) -> str:
    """Returns the folder of a file that shares servers with others of it, or else the file."""
    folder = file.rpartition("/")[0]
    shares = folder.removeprefix("tests/") in _SHARING and not _STARTS_ITS_OWN.search((ROOT / file).read_text())
    return folder if shares else file


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bounds asynchronous tests: what never comes fails one test by name, rather than the run without one."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = _bounded(item.obj)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mixes files that wait with files that compute, from the beginning to the end, so that no processor is idle."""
    folders = {
        _together(item.nodeid.partition("::")[0]): item.path.relative_to(ROOT / "tests").parts[0] for item in items
    }
    waiting = sorted(
        (each for each in folders if folders[each] in _WAITING), key=lambda each: _WAITING.index(folders[each])
    )
    computing = [each for each in folders if folders[each] not in _WAITING]
    place = {each: (at + 1) / len(files) for files in (waiting, computing) for at, each in enumerate(files)}
    items.sort(key=lambda item: place[_together(item.nodeid.partition("::")[0])])


def pytest_collection_finish() -> None:
    """Exempts what was imported and collected from garbage collection: looking through it takes most of a second."""
    gc.freeze()
    gc.enable()


def _bounded(test: Any) -> Any:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(ASYNC_TEST_SECONDS):
            await test(*args, **kwargs)

    return bounded


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Undoes what an engine that an earlier test loaded did to this process: more threads make small models slower."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 Qwen2-VL of 2 layers and width 64 with random weights; `tests.checkpoints.qwen2_vl` describes it."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def _made_checkpoints() -> dict[object, Path]:
    return {}


@pytest.fixture(scope="module")
def checkpoint(
    request: pytest.FixtureRequest,
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    _made_checkpoints: dict[object, Path],
) -> Iterator[Path]:
    """The checkpoint that CHECKPOINT of the file makes in a folder, one for all files that make it; or the tiny one.

    No test may change it: one that needs other files copies the folder.
    """
    make = getattr(request.module, "CHECKPOINT", None)
    key = (make.func, make.args, *make.keywords.items()) if isinstance(make, functools.partial) else make
    if make is None:
        path = tiny_checkpoint
    elif key in _made_checkpoints:
        path = _made_checkpoints[key]
    else:
        path = _made_checkpoints[key] = make(tmp_path_factory.mktemp("checkpoints") / "made")
    before = _written(path)
    yield path
    assert _written(path) == before, f"{request.module.__name__} changed a checkpoint that other files share"


def _written(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*")}


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Makes forks of what the programs of a file's tests start (`tests.fork_server`)."""
    from tests.fork_server import with_forks

    with pytest.MonkeyPatch.context() as patch:
        for name, value in with_forks(os.environ).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def media_host() -> Iterator[MediaHost]:
    """Where the stack may fetch media from, as nowhere else on this machine."""
    from tests.e2e.media_host import serving_media

    with serving_media() as host:
        yield host


@pytest.fixture(scope="session")
def local_media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files the stack's clients may name."""
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="session")
def local_adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose adapters the stack's clients may load."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, media_host: MediaHost, local_media: Path, local_adapters: Path
) -> Iterator[Stack]:
    """One with the embedded model, and with an adapter of random weights."""
    from glimpse.engine.checkpoint.location import DEFAULT_MODEL
    from tests.checkpoints.lora import make_adapter
    from tests.e2e.media_host import HOST
    from tests.e2e.stack import start_stack

    adapter = make_adapter(local_adapters / "tuned", DEFAULT_MODEL, strength=50)
    running = start_stack(
        tmp_path_factory.mktemp("stack"),
        # float32: random weights turn bfloat16's rounding, which differs with the size of a chunk, into other words.
        "--dtype=float32",
        "--enable-mm-embeds",
        "--connect",
        f"--lora-modules=tuned={adapter}",
        f"--allowed-lora-path={local_adapters}",
        f"--allowed-media-networks={HOST}/32",
        f"--allowed-media-ports={media_host.server_port}",
        f"--allowed-local-media-path={local_media}",
        "--video-fetch-timeout=4",
        environment={"GLIMPSE_IMAGE_FETCH_TIMEOUT": "3"},
    )
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def echo_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One that says what it is told."""
    from glimpse.server.media_settings import MediaSettings
    from tests.e2e.stack import start_echo_stack

    domains = MediaSettings(allowed_media_domains=("media.example",))
    running = start_echo_stack(tmp_path_factory.mktemp("echo"), domains)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that the tests of a file share."""
    from tests.media.shared.redis_server import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    """The running Redis, emptied."""
    running_redis.client().flushall()
    return running_redis
