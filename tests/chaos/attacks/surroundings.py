"""What a server needs gives out: its Redis, the folder of TMPDIR, memory, or room for the uploads of its tenants.

Each attack has a server of its own, and bystanders of that server. Where this machine lacks what an attack needs, the
attack says so and does nothing.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from grpc import aio

from glimpse.client.requests import upload_requests
from glimpse.v1 import media_pb2_grpc
from tests.chaos import processes
from tests.chaos.attack import Inside, ProcessAttack, meanwhile
from tests.chaos.attacks.shares import ask_about_flat_images
from tests.chaos.bystanders import Bystanders, api_key
from tests.chaos.calls import http_session, rest_unary
from tests.chaos.ledger import Ledger
from tests.chaos.questions import ask_about
from tests.chaos.stack import NotServingError, Stack, replaced, supervised_stack
from tests.identity.tokens import AUDIENCE, ISSUER, Provider
from tests.media.shared.redis_server import PROGRAM, RedisServer

_OUTAGE_SECONDS = 3.0
_BACK_SECONDS = 60.0
_ENDING_SECONDS = 5.0
_FOLDER_BYTES = 16 << 20
_FREE_BYTES = 384 << 20
"""What a server under a memory limit may take besides what it has: enough for all but the decoders of large images."""
_SMALL_CACHE = "--kv-cache-bytes=64MiB"
"""A cache whose memory the engine takes later would need most of that."""
_UPLOAD_CACHE_BYTES = 4 << 20
_UPLOAD_BYTES = 1 << 10
_MOST_UPLOADS = 32
"""At a time."""
_TENANT_WITH_MOST = "tenant-0"


@asynccontextmanager
async def _among_bystanders(
    inside: Inside,
    folder: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    key_of: Callable[[str], str] = api_key,
) -> AsyncGenerator[tuple[Stack, Bystanders]]:
    """A server of the attack's own, whose bystanders tolerate what the attack does. Its log is in the folder."""
    async with supervised_stack(replaced(inside.serve_args, flags), folder / "glimpse.log", environment) as stack:
        bystanders = Bystanders(
            target=stack.target,
            ledger=Ledger(),
            rng=inside.rng,
            hang_seconds=inside.hang_seconds,
            pause_seconds=0.3,
            key_of=key_of,
            compares=inside.compares,
        )
        await bystanders.learn()
        try:
            async with meanwhile(bystanders.run()):
                yield stack, bystanders
                bystanders.stop()
        finally:
            inside.endings += bystanders.ledger.endings
        slowest = max(each.end - each.start for each in bystanders.ledger.endings)
        inside.counts["answers to bystanders"] += len(bystanders.ledger.endings)
        inside.counts["ms of the slowest of them"] = max(
            inside.counts["ms of the slowest of them"], int(1000 * slowest)
        )


async def _redis_outages(inside: Inside) -> None:
    """Requests that carry their images are answered whatever Redis does, and uuids as soon as it is back."""
    if PROGRAM is None:
        inside.counts["no redis-server here"] += 1
        return
    with TemporaryDirectory(prefix="glimpse-chaos-") as name:
        redis = RedisServer(Path(name))
        try:
            async with _among_bystanders(inside, Path(name), f"--media-store={redis.url}") as (stack, bystanders):
                stopping = asyncio.Event()
                async with meanwhile(_use_uuids(inside, stack, bystanders, stopping)):
                    for begin, end in _outages(redis):
                        begin()
                        await asyncio.sleep(_OUTAGE_SECONDS)
                        end()
                        await _until_stored(stack)
                        inside.counts["outages"] += 1
                    stopping.set()
        finally:
            redis.stop()


def _outages(redis: RedisServer) -> list[tuple[Callable[[], object], Callable[[], object]]]:
    """Pairs of what takes Redis away and what brings it back."""
    client = redis.client()
    return [
        (redis.pause, redis.resume),
        (redis.stop, redis.start),
        (lambda: client.replicaof("127.0.0.1", redis.port + 1), lambda: client.replicaof("NO", "ONE")),
        (lambda: client.config_set("maxmemory", 1), lambda: client.config_set("maxmemory", 0)),
        (client.flushall, client.flushall),
    ]


async def _use_uuids(inside: Inside, stack: Stack, bystanders: Bystanders, stopping: asyncio.Event) -> None:
    """Sends an image with a uuid, and then the uuid alone, until `stopping`."""
    expected = bystanders.expected["REST image"] if inside.compares else None
    async with http_session(stack.target.url, key="chaos-uuids") as session:
        while not stopping.is_set():
            body = ask_about("circle", f"{inside.rng.getrandbits(64):x}")
            image = body["messages"][0]["content"][1]
            image["uuid"] = f"{inside.rng.getrandbits(64):x}"
            await inside.ask(rest_unary(session, body), tolerates=frozenset(), expected=expected)
            image["image_url"] = None
            away = frozenset({"media_store_unavailable"})
            await inside.ask(rest_unary(session, body), tolerates=away, expected=expected)


async def _until_stored(stack: Stack) -> None:
    """Waits until the server uses its Redis again.

    Raises:
        NotServingError: it does not, in time.
    """
    deadline = time.monotonic() + _BACK_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            async with session.get(stack.target.metrics_url) as answer:
                if "glimpse_media_store_available 1" in await answer.text():
                    return
            await asyncio.sleep(0.1)
    raise NotServingError(f"Redis was not used for {_BACK_SECONDS:.0f} s after it was back")


async def _full_folder(inside: Inside) -> None:
    """The folder fills up while the server runs, and a media worker is replaced while it is full."""
    with TemporaryDirectory(prefix="glimpse-chaos-") as name, _mounted(Path(name, "tmp")) as full:
        if full is None:
            inside.counts["not allowed to mount"] += 1
            return
        async with _among_bystanders(inside, Path(name), environment={"TMPDIR": str(full)}) as (stack, _):
            with suppress(OSError), (full / "fill").open("wb", buffering=0) as file:
                while True:
                    inside.counts["bytes"] += file.write(bytes(1 << 16))
            await asyncio.sleep(_OUTAGE_SECONDS)
            for pid in stack.pids("media workers")[-1:]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                inside.counts["kills"] += 1
            await asyncio.sleep(_OUTAGE_SECONDS)


@contextmanager
def _mounted(folder: Path) -> Generator[Path | None]:
    """A small file system of its own at this path; None where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_FOLDER_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


async def _memory_limit(inside: Inside) -> None:
    """Large images take more memory than the server's control group has: the kernel kills a decoder, and no other."""
    with TemporaryDirectory(prefix="glimpse-chaos-") as name, _memory_group() as group:
        if group is None:
            inside.counts["no control group for memory"] += 1
            return
        async with _among_bystanders(inside, Path(name), _SMALL_CACHE) as (stack, _):
            group.enter(each.pid for each in processes.tree(stack.pid))
            group.limit(_FREE_BYTES)
            await ask_about_flat_images(replace(inside, target=stack.target))
            inside.counts["kills"] += group.num_kills()


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryGroup:
    """A control group of Linux' version 1 or 2."""

    folder: Path

    def enter(self, pids: Iterable[int]) -> None:
        """Moves processes into the group; those that they start are in it too."""
        for pid in pids:
            with suppress(ProcessLookupError):
                (self.folder / "cgroup.procs").write_text(str(pid))

    def limit(self, free_bytes: int) -> None:
        """Bounds what its processes take, to so much more than they have taken in it."""
        used, most = (
            ("memory.current", "memory.max") if self._is_v2 else ("memory.usage_in_bytes", "memory.limit_in_bytes")
        )
        (self.folder / most).write_text(str(int((self.folder / used).read_text()) + free_bytes))

    def num_kills(self) -> int:
        """Returns how many processes the kernel has killed because memory was short."""
        lines = (self.folder / ("memory.events" if self._is_v2 else "memory.oom_control")).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    @property
    def _is_v2(self) -> bool:
        return (self.folder / "memory.max").exists()


@contextmanager
def _memory_group() -> Generator[_MemoryGroup | None]:
    """A new control group below this process's own; None where there can be none."""
    own = {line.split(":")[1]: line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    root = Path("/sys/fs/cgroup/memory" if "memory" in own else "/sys/fs/cgroup")
    folder = Path(f"{root}{own.get('memory', own.get('', '/'))}", f"glimpse-chaos-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        has_limit = any((folder / name).exists() for name in ("memory.max", "memory.limit_in_bytes"))
        yield _MemoryGroup(folder=folder) if has_limit else None
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Removes a control group, in which processes may still be ending."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)


async def _many_tenants(inside: Inside) -> None:
    """Thousands of subjects of one issuer upload until there is no room, and then one uploads what takes all of it."""
    provider, count = Provider(), inside.times(3000)

    def key_of(who: str) -> str:
        return provider.token(sub=who.replace(" ", "-"))

    with TemporaryDirectory(prefix="glimpse-chaos-") as name:
        keys = _written(Path(name), provider)
        flags = [f"--jwt-jwks={keys}", f"--jwt-issuer={ISSUER}", f"--jwt-audience={AUDIENCE}"]
        flags += [f"--upload-cache-bytes={_UPLOAD_CACHE_BYTES}"]
        async with (
            _among_bystanders(inside, Path(name), *flags, key_of=key_of) as (stack, _),
            aio.insecure_channel(stack.target.grpc_target) as channel,
        ):
            places = asyncio.Semaphore(_MOST_UPLOADS)
            media = media_pb2_grpc.MediaServiceStub(channel)

            async def upload(tenant: str, data: bytes) -> None:
                key = ("authorization", f"Bearer {key_of(tenant)}")
                async with places:
                    await media.UploadMedia(upload_requests(data, {}), metadata=(key,))
                inside.counts["uploads"] += 1

            small = (upload(f"tenant-{number}", inside.rng.randbytes(_UPLOAD_BYTES)) for number in range(count))
            await asyncio.gather(*small)
            await upload(_TENANT_WITH_MOST, bytes(_UPLOAD_CACHE_BYTES * 9 // 10))


def _written(folder: Path, provider: Provider) -> Path:
    keys = folder / "jwks.json"
    keys.write_text(provider.jwks)
    return keys


ATTACKS = [
    ProcessAttack(
        name="redis-outages",
        summary="the media store's Redis is paused, killed, demoted, without memory, flushed",
        run=_redis_outages,
        seconds=240,
        weight=0.3,
    ),
    ProcessAttack(
        name="full-folder",
        summary="the folder of TMPDIR is full while the server runs",
        run=_full_folder,
        seconds=120,
        weight=0.3,
    ),
    ProcessAttack(
        name="memory-limit",
        summary="large images in a control group that has no memory for them",
        run=_memory_limit,
        seconds=180,
        weight=0.3,
    ),
    ProcessAttack(
        name="many-tenants",
        summary="uploads of 3,000 subjects of one issuer, more than there is room for",
        run=_many_tenants,
        seconds=180,
        weight=0.3,
    ),
]
