"""The server and Envoy as processes: `glimpse up` as a user starts it, or with a scripted engine."""

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import EngineSettings, ListenSettings, Settings
from tests import loop_watchdog
from tests.engine.client.scripted import scripted_command
from tests.fork_server import Fork, with_forks
from tests.paths import ROOT
from tests.waiting import eventually

TOOL_TEMPLATE = ROOT / "models" / "training" / "chat_template.jinja"
"""A chat template with tools in the format of Hermes and Qwen."""

THINKING_SWITCH = (
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
"""The end of a template in the style of Qwen3: it ends the reasoning in the prompt."""

OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

GLIMPSE = Path(sys.executable).with_name("glimpse")
"""The command's script in the development environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server."""

    process: subprocess.Popen[bytes] | Fork
    port: int
    metrics_port: int
    log: Path

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.target, options=OPTIONS)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        return read_metric(self.metrics_port, name)

    def is_serving(self) -> bool:
        with self.channel() as channel:
            try:
                health = health_stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
            return health.status == health_pb2.HealthCheckResponse.SERVING

    def kill_engine(self) -> None:
        """Kills the engine, a child of the server that is older than its spare."""
        engine, *_ = children(self.process.pid, "glimpse.engine.worker.process")
        os.kill(engine, signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stops the server and returns its exit status. Fails if the server held its event loop for too long."""
        self.process.send_signal(how)
        status = self.process.wait(timeout=60)
        loop_watchdog.check(self.log)
        return status


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Served):
    """A running server and its gateway."""

    http_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def is_serving(self) -> bool:
        return self.health() == 200

    def health(self) -> int:
        """The HTTP status of /health; 0 without a connection."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Posts a JSON body and returns the JSON response."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def start_stack(
    folder: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    glimpse: Path = GLIMPSE,
    working_directory: Path = ROOT,
    spare_engine: bool = False,
) -> Stack:
    """Starts `glimpse up` with the embedded model and waits until /health says that it serves.

    Args:
        folder: where its output goes, to glimpse.log.
        environment: variables in addition to those of the tests.
        working_directory: where it runs.
        spare_engine: keep a second engine process; its imports would take seconds from the tests. Neither is a fork.
    """
    ports = http_port, port, metrics_port = free_ports(3)
    flags = [f"--http-port={http_port}", f"--port={port}", f"--metrics-port={metrics_port}"]
    flags += ["--drain-delay=0", "--spare-engine" if spare_engine else "--no-spare-engine"]
    command = [str(glimpse), "up", *flags, *options]
    return _start(folder, command, ports, environment, working_directory, forks=not spare_engine)


def start_echo_stack(folder: Path, media: MediaSettings | None = None) -> Stack:
    """Starts the same server with an engine that says what prompts say. Its chat template has tools and reasoning."""
    template = folder / "chat_template.jinja"
    template.write_text(TOOL_TEMPLATE.read_text() + THINKING_SWITCH)
    engine = EngineSettings(chat_template=template, spare_engine=False)
    return _start_with_engine(folder, engine, media, scripted_command("replies", step_ms=0.5))


def start_scripted_stack(
    folder: Path, *scripts: str, media: MediaSettings | None = None, drain_timeout: float = 60
) -> Stack:
    """Starts the same server with `tests.engine.scripted_engine`, one script per start, which follows request ids.

    Args:
        folder: where its output and the engine's starts go.
        drain_timeout: time that running requests get when it stops.
    """
    command = scripted_command(*scripts, starts=folder / "starts")
    return _start_with_engine(folder, EngineSettings(spare_engine=False), media, command, drain_timeout=drain_timeout)


def _start_with_engine(
    folder: Path, engine: EngineSettings, media: MediaSettings | None, engine_command: list[str], **listen: Any
) -> Stack:
    ports = http_port, port, metrics_port = free_ports(3)
    settings = Settings(
        engine=engine,
        media=media or MediaSettings(),
        listen=ListenSettings(port=port, metrics_port=metrics_port, drain_delay=0, **listen),
    )
    command = [sys.executable, "-m", "tests.e2e.scripted_glimpse", str(http_port), settings.model_dump_json()]
    return _start(folder, [*command, *engine_command], ports)


def _start(
    folder: Path,
    command: Sequence[str],
    ports: Sequence[int],
    environment: Mapping[str, str] | None = None,
    working_directory: Path = ROOT,
    *,
    forks: bool = True,
) -> Stack:
    http_port, port, metrics_port = ports
    make = partial(Stack, http_port=http_port, port=port, metrics_port=metrics_port, log=folder / "glimpse.log")
    return start(make, command, environment, working_directory, forks=forks)


ServedT = TypeVar("ServedT", bound=Served)


def start(
    make: partial[ServedT],
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    working_directory: Path = ROOT,
    *,
    forks: bool = True,
) -> ServedT:
    """Starts a server and waits until it serves.

    Args:
        make: returns the server, for its process.
        environment: variables in addition to those of the tests.
        working_directory: where it runs.
        forks: it and its engines are forks (`tests.fork_server`), rather than processes that import what they need.
    """
    variables = {**os.environ, **(environment or {})}
    with make.keywords["log"].open("wb") as log:
        if forks and sys.platform == "linux" and command[0] in (sys.executable, str(GLIMPSE)):
            arguments = command[1:] if command[0] == sys.executable else command
            files = (0, log.fileno(), log.fileno())
            process = Fork(arguments, files=files, folder=working_directory, environment=with_forks(variables))
        else:
            variables = loop_watchdog.watched(variables)
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=working_directory, env=variables
            )
    server = make(process=process)
    if not eventually(lambda: server.is_serving() or process.poll() is not None, pause=0.1):
        process.kill()
        process.wait()
    if process.poll() is not None:
        pytest.fail(f"the server did not come up:\n{server.log.read_text()}")
    return server


def health_stub(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """The health library's stub, which is untyped."""
    return health_pb2_grpc.HealthStub(channel)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, and which no other worker of the tests is given."""
    return list(islice(filter(_is_free, _ports), count))


_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw-1").removeprefix("gw")) + 1
_FIRST_PORT, _PORTS_PER_WORKER = 10_000, 4_000
"""Below the ports that the system gives to clients, and to whoever asks for any: until a server listens, it might give
them to another one."""
_offset = random.SystemRandom().randrange(_PORTS_PER_WORKER)
_ports = (
    _FIRST_PORT + _worker * _PORTS_PER_WORKER + (_offset + number) % _PORTS_PER_WORKER for number in itertools.count()
)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def children(pid: int, words: str) -> list[int]:
    """Child processes whose command line contains these words, the oldest first."""
    listing = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    return [int(child) for child, parent, command in rows if int(parent) == pid and words in command]


def read_metric(port: int, name: str) -> float:
    """The sum of a metric's samples over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)
