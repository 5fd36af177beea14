"""Several front ends on one engine: real processes, and an engine that follows a script."""

import asyncio
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2

from glimpse.client.requests import upload_requests
from glimpse.engine.client.supervisor import ENGINE_COMMAND
from glimpse.engine.errors import CheckpointError
from glimpse.identity.api_keys import KeyOwner, key_line
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tenant import Tenant
from glimpse.media.shared.values import OVERHEAD_BYTES
from glimpse.native.process_table import is_alive
from glimpse.server.lifecycle.addresses import PortError
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.media_settings import MediaSettings
from glimpse.server.processes import front_ends as front_ends_module
from glimpse.server.processes.front_ends import FrontEndDiedError, FrontEnds
from glimpse.server.processes.messages import FrontEndLoad
from glimpse.server.settings import AccessSettings, EngineSettings, ListenSettings, Settings
from glimpse.v1 import (
    chat_pb2,
    chat_pb2_grpc,
    content_pb2,
    media_pb2,
    media_pb2_grpc,
    tenant_pb2,
    tenant_pb2_grpc,
)
from tests.e2e.stack import children, free_ports, health_stub, read_metric
from tests.engine.client.scripted import scripted_command
from tests.fork_server import without_forks
from tests.media.shared.redis_server import RedisServer
from tests.server.requests import image_part, png, request, user
from tests.server.services.test_streaming import PLAIN_TOKENS
from tests.server.serving import served
from tests.waiting import eventually, until

pytestmark = pytest.mark.usefixtures("forks")

NUM_FRONT_ENDS = 2
MODULE = "glimpse.server.processes.front_end"
KEY = ("x-api-key", "the-key")
"""Key of a tenant with limits."""
OPEN = ("x-api-key", "another-key")
"""Key of a tenant without limits."""
PNG = png()
STREAM = "/glimpse.v1.ChatService/StreamChatCompletion"


@pytest.fixture(scope="module", autouse=True)
def quick_restarts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front_ends_module, "INITIAL_BACKOFF_SECONDS", 0.01)
        yield


def front_ends(
    checkpoint: Path,
    folder: Path,
    script: str = "ready",
    *,
    has_gateway: bool = True,
    access: AccessSettings | None = None,
    store: str | None = None,
    port: int = 0,
    engine_command: Sequence[str] | None = None,
) -> FrontEnds:
    """Starts front ends of an engine that follows a script, or of another one."""
    settings = Settings(
        engine=EngineSettings(model=str(checkpoint), spare_engine=False),
        listen=ListenSettings(port=port, metrics_port=0, front_ends=NUM_FRONT_ENDS),
        access=access or AccessSettings(),
        media=MediaSettings(media_store=store),
    )
    return FrontEnds(
        settings,
        find_checkpoint(settings.engine),
        has_gateway=has_gateway,
        on_loading=lambda _: None,
        engine_command=engine_command or scripted_command(script, starts=folder / "starts"),
    )


@asynccontextmanager
async def serving(checkpoint: Path, folder: Path, **options: Any) -> AsyncGenerator[FrontEnds]:
    """Front ends that serve."""
    server = front_ends(checkpoint, folder, **options)
    try:
        await server.ready()
        yield server
    finally:
        await server.stop(grace_seconds=0)


def connect(target: str) -> grpc.aio.Channel:
    """A channel that connects at once: by default all channels of a process wait together after a failure."""
    return grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])


def ask(channel: grpc.aio.Channel, script: str, key: tuple[str, str] = OPEN) -> Any:
    """A stream from the scripted engine, which follows the request's id."""
    chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
    return chat.StreamChatCompletion(request(), metadata=[("x-request-id", f"{script}-1"), key])


async def answer(target: str, script: str = "echo", key: tuple[str, str] = OPEN) -> list[Any]:
    async with connect(target) as channel:
        return [chunk async for chunk in ask(channel, script, key)]


def text_of(chunks: Sequence[Any]) -> str:
    return "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)


async def health(target: str) -> int:
    async with connect(target) as channel:
        return (await health_stub(channel).Check(health_pb2.HealthCheckRequest())).status


def processes() -> Sequence[int]:
    return children(os.getpid(), MODULE)


def pid_of(server: FrontEnds, number: int) -> int:
    process = server._slots[number].process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    return process._process.pid  # pyright: ignore[reportPrivateUsage]


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        return response.read().decode()


async def is_served(target: str) -> bool:
    try:
        return await health(target) == health_pb2.HealthCheckResponse.SERVING
    except grpc.aio.AioRpcError:
        return False


async def test_drain_lets_streams_end_and_refuses_new_requests(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with serving(tiny_checkpoint, tmp_path) as server:
        async with connect(server.upstreams[0]) as channel:
            flood = ask(channel, "flood")
            await flood.read()
            await server.announce_stop(0)
            for target in server.upstreams:
                assert await health(target) == health_pb2.HealthCheckResponse.NOT_SERVING
            ending = asyncio.create_task(server.end_requests(grace_seconds=60))
            chunk = last = await flood.read()
            while hasattr(chunk, "choices"):  # gRPC's end of a stream has none
                chunk, last = await flood.read(), chunk
            assert last.choices[0].finish_reason
            await ending
        assert len(processes()) == NUM_FRONT_ENDS


async def test_stop_at_once_ends_streams_with_a_status(tiny_checkpoint: Path, tmp_path: Path) -> None:
    async with (
        serving(tiny_checkpoint, tmp_path) as server,
        connect(server.upstreams[1]) as channel,
    ):
        held = ask(channel, "hold")
        await held.read()
        stopping = asyncio.create_task(server.stop(grace_seconds=0))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await held.read()
        assert caught.value.details() == "The server is stopping."
        await stopping
        assert not processes()


async def test_checkpoint_that_the_engine_cannot_serve_is_an_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    server = front_ends(tiny_checkpoint, tmp_path, "failed")
    with pytest.raises(CheckpointError, match="the script says that it fails"):
        await server.ready()
    await server.stop(grace_seconds=0)
    assert not processes()


async def test_error_of_a_front_end_is_the_servers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    keys = AccessSettings(api_keys=tmp_path / "missing")
    server = front_ends(tiny_checkpoint, tmp_path, access=keys)
    with pytest.raises(IdentityConfigError, match="--api-keys"):
        await server.listening()
    await server.stop(grace_seconds=0)


async def test_several_front_ends_do_not_start_without_the_store_that_they_share(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    (nowhere,) = free_ports(1)
    server = front_ends(tiny_checkpoint, tmp_path, store=f"redis://127.0.0.1:{nowhere}")
    with pytest.raises(FrontEndDiedError, match="'--media-store': expected a Redis that answers"):
        await server.listening()
    await server.stop(grace_seconds=0)


async def test_port_in_use_is_an_error_before_anything_starts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"127.0.0.1:{port}"):
            front_ends(tiny_checkpoint, tmp_path, port=port)
    assert not processes()


def test_front_ends_end_with_their_supervisor(tiny_checkpoint: Path, tmp_path: Path, redis: RedisServer) -> None:
    with served(tiny_checkpoint, tmp_path, f"--front-ends={NUM_FRONT_ENDS}", f"--media-store={redis.url}") as server:
        running = children(server.process.pid, MODULE)
        assert len(running) == NUM_FRONT_ENDS
        server.process.kill()
        server.process.wait()
        assert eventually(lambda: not any(is_alive(pid) for pid in running))


def test_ctrl_c_ends_all_with_status_0_and_reaches_no_front_end_even_while_it_imports(
    tiny_checkpoint: Path, tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends the signal to the whole process group."""
    without_forks(monkeypatch)
    interrupted, serves = set[int](), threading.Event()

    def interrupt() -> None:
        while not serves.is_set():
            for pid in (found for server in children(os.getpid(), "main()") for found in children(server, MODULE)):
                if (
                    Path(f"/proc/{pid}/comm").read_text() == "sh\n"
                ):  # which is about to ignore the signal: see interrupts.py
                    continue
                os.kill(pid, signal.SIGINT)
                interrupted.add(pid)
            time.sleep(0.05)  # listing processes takes a processor from those that import

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        options = (f"--front-ends={NUM_FRONT_ENDS}", f"--media-store={redis.url}")
        with served(tiny_checkpoint, tmp_path, *options, forks=False) as server:
            running = set(children(server.process.pid, MODULE))
            assert running == interrupted
            serves.set()
            assert eventually(lambda: "Serving " in (tmp_path / "serve.log").read_text())
            for pid in (*running, server.process.pid):
                os.kill(pid, signal.SIGINT)
            assert server.process.wait(timeout=30) == 0
            assert not any(is_alive(pid) for pid in running)
    finally:
        serves.set()
        thread.join()
    assert "KeyboardInterrupt" not in (tmp_path / "serve.log").read_text()


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> AccessSettings:
    """A tenant that may have one request at a time and one mebibyte of media, and one that has no limits."""
    folder = tmp_path_factory.mktemp("access")
    keys, limits = folder / "keys", folder / "limits"
    keys.write_text(
        "\n".join(key_line(key, KeyOwner(tenant=name)) for name, (_, key) in (("acme", KEY), ("open", OPEN)))
    )
    limits.write_text('[tenant.acme]\nmax_concurrent_requests = 1\nmax_media_bytes = "1MiB"\n')
    return AccessSettings(api_keys=keys, tenants=limits)


async def test_purge_of_a_tenant_reaches_all_front_ends_and_those_that_come_later(
    tiny_checkpoint: Path, tmp_path: Path, access: AccessSettings, redis: RedisServer
) -> None:
    async with serving(
        tiny_checkpoint, tmp_path, access=access, store=redis.url, engine_command=ENGINE_COMMAND
    ) as server:
        here, there = server.upstreams
        assert [await num_cached(here), await num_cached(there) > 0] == [0, True], "they share the engine's cache"
        await purge(here)
        assert [await num_cached(there), await num_cached(here) > 0] == [0, True]
        second = await replaced(processes()[0])
        await until_served(here)
        assert await num_cached(here) == await num_cached(there) > 0
        await replaced(second)
        await purge(there)  # while the other one starts, which has been told already what was purged before
        await until_served(here)
        assert [await num_cached(here), await num_cached(there) > 0] == [0, True]


async def replaced(victim: int) -> int:
    """Kills a front end. Returns the process id of the next one once that has been started."""
    before = set(processes())
    os.kill(victim, signal.SIGKILL)
    await until(lambda: len(set(processes()) - before) == 1)
    return (set(processes()) - before).pop()


async def purge(target: str) -> None:
    async with connect(target) as channel:
        tenants: Any = tenant_pb2_grpc.TenantServiceStub(channel)
        await tenants.PurgeTenant(tenant_pb2.PurgeTenantRequest(tenant="acme"), metadata=[KEY])


async def num_cached(target: str) -> int:
    """Asks the same question each time. Returns how much of it was cached."""
    async with connect(target) as channel:
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        question = request(user("one two three four " * 20), max_completion_tokens=1)
        usage = (await chat.CreateChatCompletion(question, metadata=[KEY])).usage
    return usage.prompt_tokens_details.cached_tokens


# The tests below share front ends, of which they leave as many as they find. Those above count all that run.
on_shared_front_ends = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    access: AccessSettings,
    running_redis: RedisServer,
) -> AsyncIterator[FrontEnds]:
    folder = tmp_path_factory.mktemp("front-ends")
    async with serving(tiny_checkpoint, folder, access=access, store=running_redis.url) as running:
        yield running


@on_shared_front_ends
async def test_each_serves_alone_and_all_on_the_common_port(server: FrontEnds) -> None:
    assert len(set(server.upstreams)) == NUM_FRONT_ENDS == len(processes())
    for target in (*server.upstreams, f"127.0.0.1:{server.port}"):
        assert len(await answer(target)) > 1
        assert await health(target) == health_pb2.HealthCheckResponse.SERVING
    scraped = await asyncio.to_thread(scrape, server.metrics_port)
    assert f'glimpse_requests_total{{code="OK",method="{STREAM}"}} 3.0' in scraped
    assert "glimpse_engine_ready 1.0" in scraped


@on_shared_front_ends
async def test_requests_with_the_same_id_on_two_front_ends_do_not_mix(server: FrontEnds) -> None:
    answers = await asyncio.gather(*(answer(target) for target in (*server.upstreams, *server.upstreams)))
    # The scripted engine's last event brings no token: merged with the one before, it hides the last newline.
    assert len({text_of(each).removesuffix("\n") for each in answers}) == 1


@on_shared_front_ends
async def test_front_end_that_hangs_counts_as_it_last_answered(
    server: FrontEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_forks(monkeypatch)
    victim = await replaced(pid_of(server, 0))
    await until_served(server.upstreams[0])
    read = lambda: read_metric(server.metrics_port, "glimpse_requests_total")  # noqa: E731
    before = await asyncio.to_thread(read)
    os.kill(victim, signal.SIGSTOP)
    try:
        await answer(server.upstreams[1])
        assert await asyncio.to_thread(read) == before + 1
    finally:
        os.kill(victim, signal.SIGCONT)
    await answer(server.upstreams[0])
    assert await asyncio.to_thread(read) == before + 2


@on_shared_front_ends
async def test_front_end_that_dies_is_replaced_once_and_its_requests_leave_the_engine(
    server: FrontEnds, caplog: pytest.LogCaptureFixture
) -> None:
    victim, target = pid_of(server, 0), server.upstreams[0]
    async with connect(target) as channel:
        held = ask(channel, "hold")
        await held.read()
        before = await asyncio.to_thread(read_metric, server.metrics_port, "glimpse_requests_running")
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await held.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert before == 1
    assert len(await answer(server.upstreams[1])) > 1
    await until(lambda: len(processes()) == NUM_FRONT_ENDS and not is_alive(victim))
    await until_served(target)
    assert len(await answer(target)) > 1
    await until(lambda: server._broker.num_open == 0)  # pyright: ignore[reportPrivateUsage]
    assert caplog.text.count("another starts in") == 1, "one that starts while the others have load lives"


@on_shared_front_ends
async def test_counters_keep_what_a_dead_front_end_counted(server: FrontEnds) -> None:
    read = lambda: read_metric(server.metrics_port, "glimpse_requests_total")  # noqa: E731
    before = await asyncio.to_thread(read)
    for target in server.upstreams:
        await answer(target)
    assert await asyncio.to_thread(read) == before + NUM_FRONT_ENDS
    os.kill(victim := processes()[0], signal.SIGKILL)
    await until(lambda: len(processes()) == NUM_FRONT_ENDS and not is_alive(victim))
    for target in server.upstreams:
        await until_served(target)
    assert await asyncio.to_thread(read) == before + NUM_FRONT_ENDS


@on_shared_front_ends
async def test_engine_hears_one_name_of_a_client_from_all_front_ends(server: FrontEnds) -> None:
    """Else a client would have a share of the engine for each."""
    for target in server.upstreams:
        assert text_of(await answer(target, "who")) == PLAIN_TOKENS[0]


@on_shared_front_ends
async def test_limits_of_a_tenant_hold_over_all_front_ends(server: FrontEnds, running_redis: RedisServer) -> None:
    await until_counted_together(server)
    here, there = server.upstreams
    async with connect(here) as channel:
        held = ask(channel, "hold", KEY)
        await held.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(there, key=KEY)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        os.kill(pid_of(server, 0), signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            await held.read()
    client = running_redis.client()
    await until(lambda: not client.exists(*client.keys("glimpse:running:*") or ["none"]))
    assert len(await answer(there, key=KEY)) > 1
    await until_served(here)


async def until_served(target: str) -> None:
    await until(lambda: is_served(target))


async def until_counted_together(server: FrontEnds) -> None:
    """Waits until all front ends reach the quota store."""
    await until(lambda: asyncio.to_thread(read_metric, server.metrics_port, "glimpse_quota_store_available"))


@on_shared_front_ends
async def test_media_of_a_tenant_on_other_front_ends_count_against_its_limit(server: FrontEnds) -> None:
    of_others = FrontEndLoad(
        waiting={}, rpcs_per_second=0, failures_per_second=0, media_bytes={Tenant("acme").namespace_prefix: 1 << 20}
    )
    here = server.upstreams[0]
    assert await refusal_of_image(here) == ""
    server._loads.set(NUM_FRONT_ENDS, of_others)  # pyright: ignore[reportPrivateUsage]
    assert "exceed its limit, 1048576 bytes" in await eventually_refused(here, is_refused=True)
    server._loads.remove(NUM_FRONT_ENDS)  # pyright: ignore[reportPrivateUsage]
    await eventually_refused(here, is_refused=False)


async def eventually_refused(target: str, *, is_refused: bool) -> str:
    """Asks about an image until that is refused, or no longer. Returns why it is."""
    while True:
        if bool(refusal := await refusal_of_image(target)) == is_refused:
            return refusal
        await asyncio.sleep(0.05)


async def refusal_of_image(target: str) -> str:
    """Asks about an image. Returns why that is refused; empty if it is not."""
    async with connect(target) as channel:
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        try:
            await chat.CountTokens(chat_pb2.CountTokensRequest(messages=[user(image_part(png()))]), metadata=[KEY])
        except grpc.aio.AioRpcError as error:
            return error.details() or "refused"
    return ""


@on_shared_front_ends
async def test_upload_is_known_to_all_front_ends_and_outlives_the_one_that_got_it(server: FrontEnds) -> None:
    here, there = server.upstreams
    async with connect(here) as channel:
        upload_id = await uploaded(channel, PNG)
    scraped = await asyncio.to_thread(scrape, server.metrics_port)
    copied = len(PNG) + OVERHEAD_BYTES
    assert f'glimpse_media_bytes{{state="uploaded"}} {copied:.1f}' in scraped
    os.kill(pid_of(server, 0), signal.SIGKILL)
    image = content_pb2.ContentPart(image={"source": {"upload_id": upload_id}})
    async with connect(there) as channel:
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        stream = chat.StreamChatCompletion(request(user("What?", image)), metadata=[("x-request-id", "echo-1"), OPEN])
        assert len([chunk async for chunk in stream]) > 1
        await until(lambda: len(processes()) == NUM_FRONT_ENDS)
        await until_served(here)
        async with connect(here) as again:
            await media_stub(again).DeleteMedia(media_pb2.DeleteMediaRequest(upload_id=upload_id), metadata=[OPEN])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await media_stub(channel).GetMedia(media_pb2.GetMediaRequest(upload_id=upload_id), metadata=[OPEN])
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        all_heard = 'state="uploaded"} 0.0'
        await until(lambda: asyncio.to_thread(lambda: all_heard in scrape(server.metrics_port)))


async def uploaded(channel: grpc.aio.Channel, data: bytes) -> str:
    return (await media_stub(channel).UploadMedia(upload_requests(data, {}), metadata=[OPEN])).media.upload_id


def media_stub(channel: grpc.aio.Channel) -> Any:
    return media_pb2_grpc.MediaServiceStub(channel)


@on_shared_front_ends
async def test_engine_that_dies_ends_requests_everywhere_and_comes_back(server: FrontEnds) -> None:
    """The last test, since the prompt that the engine died with twice is refused for minutes."""
    for target in server.upstreams:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(target, "garble")
        assert caught.value.code() is grpc.StatusCode.ABORTED
        for each in server.upstreams:
            await until_served(each)
