"""Starts several servers and one gateway on this machine, shows what each does, and stops them on Ctrl-C: `make mesh`.

The servers share the machine's processors, so this shows how requests are routed, not how fast several machines are.
docs/mesh.md is a walk through it.
"""

import argparse
import asyncio
import contextlib
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from glimpse.gateway import admin
from glimpse.gateway.address import Address
from glimpse.gateway.health import is_serving
from glimpse.gateway.replicas.clusters import BY_KEY, BY_LOAD
from glimpse.interrupts import ending_signals
from glimpse.server.cli.local.top import percent, read_metrics

HOST = "127.0.0.1"
REDIS = shutil.which("redis-server") or shutil.which("valkey-server")
GLIMPSE = (sys.executable, "-m", "glimpse")
START_SECONDS = 300.0
STOP_SECONDS = 75.0
COLUMNS = ("server", "state", "running", "waiting", "KV cache", "prompt tokens", "cached", "by key", "by load")

HELP = """\
The gateway: {url} (REST, gRPC and grpc-web). Logs: {folder}

Questions about one image go to one server ("by key" grows). Ask twice: the second prompt is cached.

  {glimpse} chat "What is in this image?" --image {image} --target {target}

So do requests with one prompt_cache_key. Change the key, and they may go to another server.

  curl -s {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"prompt_cache_key": "me", "messages": [{{"role": "user", "content": "Hello"}}]}}'

Requests without a key go to the servers that have less to do ("by load" grows).

  curl -s {url}/v1/models

Kill the last server, and its keys move; those of the others stay. Start it again, and they come back.

  kill -9 {pid}
  {command}

Ctrl-C here ends everything that was started from here.
"""


class MeshError(Exception):
    """A process did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, running."""

    process: asyncio.subprocess.Process
    command: Sequence[str]
    address: Address
    metrics_url: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mesh", description=__doc__)
    parser.add_argument("--replicas", type=int, default=3, help="number of servers (3)")
    parser.add_argument(
        "--model", help="folder of a checkpoint, or its id on the Hugging Face Hub (the embedded model)"
    )
    parser.add_argument("--http-port", type=int, default=8080, help="port of the gateway (8080)")
    parser.add_argument("--port", type=int, default=50051, help="port of the first server; the others follow (50051)")
    parser.add_argument(
        "--metrics-port", type=int, default=9090, help="the first one's metrics; the others follow (9090)"
    )
    parser.add_argument("--redis-port", type=int, default=6379, help="port of Redis, where it is installed (6379)")
    options = parser.parse_args()
    try:
        asyncio.run(run(options))
    except MeshError as error:
        sys.exit(f"make mesh: {error}")


async def run(options: argparse.Namespace) -> None:
    """Runs the mesh until a signal.

    Raises:
        MeshError: a process does not start.
    """
    stopping = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    console = Console()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glimpse-mesh-")))
        store = await stack.enter_async_context(_media_store(folder, options.redis_port))
        console.print(f"Media store: {store or 'none; install redis-server or valkey-server for one'}", highlight=False)
        servers = [
            await stack.enter_async_context(_server(folder, options, number, store))
            for number in range(options.replicas)
        ]
        gateway = await stack.enter_async_context(_gateway(folder, options, servers))
        console.print(f"Starting {options.replicas} servers and a gateway …", highlight=False)
        ready = asyncio.create_task(_until_ready(folder, servers, gateway))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([ready, stopped], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
        ready.cancel()
        if not stopping.is_set():
            console.print(_help(folder, options, servers), markup=False, highlight=False, soft_wrap=True)
            await _show(console, folder, servers, stopped)
        console.print("Stopping …")


@asynccontextmanager
async def _media_store(folder: Path, port: int) -> AsyncGenerator[str | None]:
    """Redis, where it is installed: uploads and uuids of each server are found on all. Returns its URL.

    Raises:
        MeshError: it does not start.
    """
    if REDIS is None:
        yield None
        return
    flags = (f"--port {port}", f"--bind {HOST}", f"--dir {folder}", "--save ''", "--maxmemory 1gb")
    log_path = folder / "redis.log"
    async with _process(log_path, REDIS, *shlex.split(" ".join(flags))) as process:
        # Not a connection: another program may have the port.
        while "Ready to accept connections" not in (log := log_path.read_text(errors="replace")):
            if process.returncode is not None:
                raise MeshError(f"Redis ended:\n{log[-2000:]}")
            await asyncio.sleep(0.05)
        yield f"redis://{HOST}:{port}/0"


@asynccontextmanager
async def _server(folder: Path, options: argparse.Namespace, number: int, store: str | None) -> AsyncGenerator[Server]:
    address = Address(host=HOST, port=options.port + number)
    metrics_port = options.metrics_port + number
    # A spare engine for each would take the time of those that serve.
    flags = [f"--port={address.port}", f"--metrics-port={metrics_port}", "--no-spare-engine"]
    flags += [f"--model={options.model}"] if options.model else []
    flags += [f"--media-store={store}"] if store else []
    command = (*GLIMPSE, "serve", *flags)
    async with _process(folder / f"server-{number}.log", *command) as process:
        metrics_url = f"http://{HOST}:{metrics_port}/metrics"
        yield Server(process=process, command=command, address=address, metrics_url=metrics_url)


@asynccontextmanager
async def _gateway(
    folder: Path, options: argparse.Namespace, servers: Sequence[Server]
) -> AsyncGenerator[asyncio.subprocess.Process]:
    upstreams = (f"--upstream={server.address}" for server in servers)
    flags = (
        f"--listen={HOST}:{options.http_port}",
        f"--run-dir={folder}",
        "--workers=1",
        "--access-log",
        "--route-by-key",
    )
    async with _process(folder / "gateway.log", *GLIMPSE, "gateway", "run", *flags, *upstreams) as process:
        yield process


@asynccontextmanager
async def _process(log_path: Path, *command: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Runs a command, and stops it at the end as Ctrl-C does."""
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C reaches us alone: the gateway ends first, then the servers.
            process_group=0,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()


async def _until_ready(folder: Path, servers: Sequence[Server], gateway: asyncio.subprocess.Process) -> None:
    """Waits until all serve. Raises MeshError where one does not."""
    named = {f"server-{number}": server.process for number, server in enumerate(servers)} | {"gateway": gateway}
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await _all_serve(folder, servers):
                for name, process in named.items():
                    if process.returncode is not None:
                        log = (folder / f"{name}.log").read_text(errors="replace")
                        raise MeshError(f"{name} ended:\n{log[-2000:]}")
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise MeshError(f"not all servers serve after {START_SECONDS:.0f} s") from None


async def _all_serve(folder: Path, servers: Sequence[Server]) -> bool:
    if not await asyncio.to_thread(admin.is_ready, folder / "admin.sock"):
        return False
    if not all([await asyncio.to_thread(is_serving, server.address) for server in servers]):
        return False
    # The gateway learns it from its next health check, and the table shows what the gateway knows.
    known = await asyncio.to_thread(admin.servers, folder / "admin.sock", BY_KEY)
    return len(known) == len(servers) and all(server.is_healthy for server in known)


def _help(folder: Path, options: argparse.Namespace, servers: Sequence[Server]) -> str:
    target = f"{HOST}:{options.http_port}"
    image = Path(__file__).resolve().parent.parent / "examples" / "image.png"
    return HELP.format(
        url=f"http://{target}",
        target=target,
        folder=folder,
        image=image,
        glimpse=Path(sys.executable).with_name("glimpse"),
        pid=servers[-1].process.pid,
        command=shlex.join(servers[-1].command),
    )


async def _show(console: Console, folder: Path, servers: Sequence[Server], stopped: asyncio.Task[bool]) -> None:
    """Shows the servers' load until stopped: live on a terminal, and elsewhere whenever it has changed."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while not stopped.done():
                live.update(_table(await asyncio.to_thread(_rows, folder, servers)), refresh=True)
                await asyncio.wait([stopped], timeout=0.5)
        return
    shown = None
    while not stopped.done():
        rows = await asyncio.to_thread(_rows, folder, servers)
        if rows != shown:
            console.print(_table(rows))
            shown = rows
        await asyncio.wait([stopped], timeout=2)


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*row)
    return table


def _rows(folder: Path, servers: Sequence[Server]) -> list[list[str]]:
    try:
        by_cluster = {
            cluster: {each.address: each for each in admin.servers(folder / "admin.sock", cluster)}
            for cluster in (BY_KEY, BY_LOAD)
        }
    except admin.AdminError:
        return []
    return [_row(server, by_cluster) for server in servers]


def _row(server: Server, by_cluster: dict[str, dict[str, admin.ServerStatus]]) -> list[str]:
    name = str(server.address)
    status = by_cluster[BY_KEY].get(name)
    # One that was started by hand instead of one that ended serves too.
    ended = server.process.returncode is not None
    state = "serving" if status and status.is_healthy else "ended" if ended else "away"
    metrics = read_metrics(server.metrics_url)
    blocks, prompt = metrics.get("glimpse_kv_blocks", 0), metrics.get("glimpse_prompt_tokens_total", 0)
    counts = [by_cluster[cluster][name].num_requests if status else 0 for cluster in (BY_KEY, BY_LOAD)]
    return [
        name,
        state,
        f"{metrics.get('glimpse_running_sequences', 0):.0f}",
        f"{metrics.get('glimpse_waiting_sequences', 0):.0f}",
        percent(metrics.get("glimpse_kv_blocks_used", 0), blocks),
        f"{prompt:.0f}",
        percent(metrics.get("glimpse_cached_tokens_total", 0), prompt),
        *map(str, counts),
    ]


if __name__ == "__main__":
    main()
