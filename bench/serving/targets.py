"""Servers under test, as programs: starts them, waits for them, and stops them with their children."""

import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.serving.clients import Turn, make_client
from glimpse.native.process_table import command_line, family

_POLL_SECONDS = 0.05
_START_SECONDS = 600.0
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how it is started."""

    name: str
    url: str
    """OpenAI base URL, which ends in /v1; /health next to it reports readiness."""
    command: Sequence[str]
    model: str | None = None
    """The model to request; None takes the first that it lists."""


class TargetError(Exception):
    """A server that did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A running server."""

    pid: int
    healthy_seconds: float
    """From process start until /health is ready."""
    first_answer_seconds: float
    """From process start to the first token of the first answer."""


def glimpse(checkpoint: Path, options: str) -> Target:
    """`glimpse up` with Envoy, on free ports; without draft tokens unless the options say otherwise.

    Random weights repeat themselves, so that draft tokens would gain more than with text.
    """
    http_port, grpc_port, metrics_port = free_ports(3)
    ports = (f"--http-port={http_port}", f"--port={grpc_port}", f"--metrics-port={metrics_port}")
    program = str(Path(sys.executable).with_name("glimpse"))
    drafts = () if "--speculative" in options else ("--speculative=off",)
    return Target(
        name="glimpse",
        url=f"http://127.0.0.1:{http_port}/v1",
        command=(program, "up", f"--model={checkpoint}", *ports, *drafts, *shlex.split(options)),
    )


def parse_peer(text: str, checkpoint: Path) -> Target:
    """Parses a peer: NAME [MODEL@]URL COMMAND…; {checkpoint} is replaced by the checkpoint's folder.

    Raises:
        ValueError: fewer than three words.
    """
    words = [word.replace("{checkpoint}", str(checkpoint)) for word in shlex.split(text)]
    if len(words) < 3:
        raise ValueError(f"a peer is NAME URL COMMAND…, not {text!r}")
    model, _, url = words[1].rpartition("@")
    return Target(name=words[0], url=url, command=words[2:], model=model or None)


@contextmanager
def started(target: Target, log: Path) -> Generator[Started]:
    """Runs a server for the duration of a block. Raises TargetError."""
    with log.open("wb") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(target.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait_until_healthy(target, process, log)
            healthy_seconds = time.perf_counter() - begun
            first_token_at = uvloop.run(_first_token_at(target))
            yield Started(pid=process.pid, healthy_seconds=healthy_seconds, first_answer_seconds=first_token_at - begun)
        finally:
            _stop(process)


def _wait_until_healthy(target: Target, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _is_healthy(target.url.removesuffix("/v1") + "/health"):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise TargetError(f"{target.name} did not come up:\n{tail}")
        time.sleep(_POLL_SECONDS)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


async def _first_token_at(target: Target) -> float:
    async with make_client(target.url, model=target.model, ignore_eos=False) as client:
        answer = await client.ask([Turn(role="user", text="Where is the red house?")], max_tokens=2)
    return answer.token_times[0]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminates the server; kills what remains of it."""
    started = {pid: command_line(pid) for pid in family(process.pid)}
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_STOP_SECONDS)
    left = [pid for pid, words in started.items() if words and command_line(pid) == words]
    if left:
        subprocess.run(["kill", "-KILL", *map(str, left)], check=False, stderr=subprocess.DEVNULL)
    process.wait()


def free_ports(count: int) -> list[int]:
    """Returns loopback ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
