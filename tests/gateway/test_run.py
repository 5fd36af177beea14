"""The gateway's process: health, start, drain and stop."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.gateway.address import Address
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.run import Envoy, GatewayError
from tests.e2e.stack import children, free_ports
from tests.gateway.backend import Context, Requests, event, start_backend
from tests.gateway.conftest import ANY_PORT

CHAT = "/v1/chat/completions"


async def health_becomes(url: str, status: int) -> None:
    async with aiohttp.ClientSession(url) as session:
        while True:
            async with session.get("/health") as answer:
                if answer.status == status:
                    return
            await asyncio.sleep(0.05)


async def test_health_follows_the_backend(tmp_path: Path) -> None:
    backend = await start_backend()
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(backend.address,)), run_dir=tmp_path) as envoy:
        url = f"http://{envoy.address}"
        await health_becomes(url, 200)
        backend.serving = False
        await health_becomes(url, 503)
        backend.serving = True
        await health_becomes(url, 200)

        await backend.server.stop(0)
        await health_becomes(url, 503)
        async with aiohttp.ClientSession(url) as session, session.post(CHAT, data=b"{}") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "unavailable"

        backend = await start_backend(backend.address)
        await health_becomes(url, 200)
        await backend.server.stop(0)


async def test_unhealthy_server_still_gets_requests(tmp_path: Path) -> None:
    backend = await start_backend()
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(backend.address,)), run_dir=tmp_path) as envoy:
        backend.serving = False
        await health_becomes(f"http://{envoy.address}", 503)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{envoy.address}{CHAT}", data=b"x") as answer,
        ):
            assert await answer.read() == b"x"
    await backend.server.stop(0)


async def test_port_in_use_names_the_flag(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = Address(host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(GatewayError, match=f"{listen} is in use; choose another address with --listen"):
            async with Envoy(GatewayOptions(listen=listen, upstream=(ANY_PORT,)), run_dir=tmp_path):
                pass


async def test_too_little_address_space_names_the_limit() -> None:
    command = (
        f"ulimit -v 1000000; exec {sys.executable} -m glimpse.gateway run --listen {ANY_PORT} --upstream {ANY_PORT}"
    )
    process = await asyncio.create_subprocess_exec("sh", "-c", command, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    assert error.decode().splitlines() == [
        "glimpse gateway: Envoy did not start: expected a limit of address space of at least 4 GiB, got 976 MiB; "
        "raise it (`ulimit -v unlimited`, LimitAS=): Envoy reserves much of it and uses little"
    ]
    assert process.returncode == 1


async def test_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "api.binpb").symlink_to("/dev/full")
    with pytest.raises(GatewayError, match=r"configuration: \[Errno 28\] No space left on device; make room .* TMPDIR"):
        async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(ANY_PORT,)), run_dir=tmp_path):
            pass


def test_unusable_temporary_folder_ends_the_start_without_a_traceback() -> None:
    # Python falls back to other folders, such as /tmp, unless none takes a file.
    command = f"ulimit -f 0; exec {sys.executable} -m glimpse.gateway run --listen {ANY_PORT} --upstream {ANY_PORT}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert re.fullmatch(r"glimpse gateway: cannot write Envoy's configuration: .*TMPDIR\n", ended.stderr)


async def test_second_gateway_cannot_share_the_port(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(ANY_PORT,)), run_dir=tmp_path / "a") as first:
        with pytest.raises(GatewayError, match="is in use"):
            async with Envoy(GatewayOptions(listen=first.address, upstream=(ANY_PORT,)), run_dir=tmp_path / "b"):
                pass


async def test_run_dir_is_reusable_after_a_kill(tmp_path: Path) -> None:
    first = Envoy(GatewayOptions(listen=ANY_PORT, upstream=(ANY_PORT,)), run_dir=tmp_path)
    await first.start()
    os.kill(first._running().pid, signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
    assert await first.wait() == -signal.SIGKILL
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(ANY_PORT,)), run_dir=tmp_path) as second:
        assert second.address.port != 0


async def endless_stream(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
    yield event("first")
    await asyncio.Event().wait()


async def slow_stream(requests: Requests, context: Context) -> AsyncIterator[HttpBody]:
    yield event("first")
    await asyncio.sleep(1)
    yield event("last")


async def start_command(upstream: str, *options: str) -> tuple[asyncio.subprocess.Process, str]:
    """Starts `python -m glimpse.gateway run` on a free port; returns the process and its URL."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "glimpse.gateway",
            "run",
            "--listen",
            "127.0.0.1:0",
            "--upstream",
            upstream,
        ),
        *options,
        stdout=asyncio.subprocess.PIPE,
        # Its own process group, as in a shell.
        process_group=0,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return process, line.removeprefix("Gateway on ").strip()


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
async def test_stop_finishes_running_answers(how: str) -> None:
    backend = await start_backend()
    backend.script = slow_stream
    process, url = await start_command(str(backend.address))
    async with aiohttp.ClientSession(url) as session, session.post(CHAT, data=b"{}") as answer:
        await answer.content.readany()
        if how == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.SIGINT)
        assert await answer.content.read() == b"data: last\n\n"
    assert await process.wait() == 0
    await backend.server.stop(0)


async def test_answers_are_finished_whether_or_not_it_knows_that_envoy_serves() -> None:
    """Envoy serves a moment before this process notices. Here it is held up, and told to end, in that moment."""
    backend = await start_backend()
    backend.script = slow_stream
    (port,) = free_ports(1)
    command = (sys.executable, "-m", "glimpse.gateway", "run", f"--listen=127.0.0.1:{port}")
    process = await asyncio.create_subprocess_exec(*command, f"--upstream={backend.address}")
    while not await asyncio.to_thread(children, process.pid, "envoy"):
        assert process.returncode is None
    process.send_signal(signal.SIGSTOP)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        await health_of(session)
        async with session.post(CHAT, data=b"{}") as answer:
            await answer.content.readany()
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            assert await answer.content.read() == b"data: last\n\n"
    assert await process.wait() == 0
    await backend.server.stop(0)


async def health_of(session: aiohttp.ClientSession) -> int:
    """The status, once there is one."""
    while True:
        try:
            async with session.get("/health") as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.02)


async def test_second_signal_stops_at_once() -> None:
    backend = await start_backend()
    backend.script = endless_stream
    process, url = await start_command(str(backend.address), "--drain-seconds", "1000")
    async with aiohttp.ClientSession(url) as session, session.post(CHAT, data=b"{}") as answer:
        await answer.content.readany()
        process.send_signal(signal.SIGINT)
        await health_becomes(url, 503)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    await backend.server.stop(0)


async def test_stops_when_its_parent_exits() -> None:
    command = (
        f"{sys.executable} -m glimpse.gateway run --listen 127.0.0.1:0 --upstream 127.0.0.1:1"
        " --end-with-parent=$$ & wait"
    )
    parent = await asyncio.create_subprocess_exec("sh", "-c", command, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    assert (await parent.stdout.readline()).startswith(b"Gateway on ")
    parent.kill()
    # The output ends when the last process that holds it, Envoy, exits.
    assert await parent.stdout.read() == b""
    await parent.wait()


async def test_stops_when_its_parent_has_exited_before_it_runs() -> None:
    gone = await asyncio.create_subprocess_exec("true")
    await gone.wait()
    process, _ = await start_command(str(ANY_PORT), f"--end-with-parent={gone.pid}")
    assert await process.wait() == 0


async def test_envoy_ends_when_its_supervisor_is_killed() -> None:
    process, url = await start_command(str(ANY_PORT))
    assert process.stdout is not None
    process.kill()
    # The output ends when the last process that holds it, Envoy, exits.
    assert await process.stdout.read() == b""
    await process.wait()
    with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
        pass  # the next one has the port


async def test_drain_has_a_time_limit() -> None:
    backend = await start_backend()
    backend.script = endless_stream
    process, url = await start_command(str(backend.address), "--drain-seconds", "1")
    async with aiohttp.ClientSession(url) as session, session.post(CHAT, data=b"{}") as answer:
        await answer.content.readany()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    await backend.server.stop(0)


async def test_drain_asks_an_envoy_again_that_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy's requests go on: to end it then would cut them."""
    backend = await start_backend()
    async with Envoy(GatewayOptions(listen=ANY_PORT, upstream=(backend.address,)), run_dir=tmp_path) as envoy:
        os.kill(envoy._running().pid, signal.SIGSTOP)  # pyright: ignore[reportPrivateUsage]
        with monkeypatch.context() as impatient:
            impatient.setattr("glimpse.gateway.admin._TIMEOUT_SECONDS", 0.05)
            drain = asyncio.create_task(envoy.drain())
            await asyncio.wait([drain], timeout=0.5)
            assert not drain.done()
        os.kill(envoy._running().pid, signal.SIGCONT)  # pyright: ignore[reportPrivateUsage]
        await drain
    await backend.server.stop(0)


async def test_access_log_has_a_line_for_each_request() -> None:
    backend = await start_backend()
    process, url = await start_command(str(backend.address), "--access-log")
    assert process.stdout is not None
    async with aiohttp.ClientSession(url) as session, session.get("/v1/models", headers={"x-request-id": "mine"}):
        pass
    line = (await process.stdout.readline()).decode()
    assert "GET /v1/models 200" in line
    assert "request_id=mine" in line
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    await backend.server.stop(0)


async def test_health_command_exits_with_the_health() -> None:
    backend = await start_backend()

    async def status(*flags: str, **variables: str) -> int:
        command = (sys.executable, "-m", "glimpse.gateway", "health", *flags)
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | variables)
        return await process.wait()

    assert await status("--upstream", str(backend.address), GLIMPSE_PORT="1") == 0
    assert await status(GLIMPSE_PORT=str(backend.address.port)) == 0  # as the image's HEALTHCHECK
    backend.serving = False
    assert await status(GLIMPSE_PORT=str(backend.address.port)) == 1
    await backend.server.stop(0)
    assert await status("--upstream", str(backend.address)) == 1
