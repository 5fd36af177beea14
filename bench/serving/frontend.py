"""CPU time per token of the front end and Envoy, with an engine that computes nothing and emits tokens at a fixed rate.

    python -m bench.serving.frontend [--front-ends 1] [--streams 16] [--step-ms 30] [--seconds 10]

Starts the server with `tests.engine.scripted_engine` and Envoy, runs the streams over REST and then over gRPC, and
prints the CPU time of the front end and of Envoy: microseconds per token, also without what it takes to begin and to
end the streams, and the share of a core; and the median time between two chunks at the client, of which each step gives
a stream one. With several front ends it prints their sum, and the supervisor's time. The last row is a server that only
writes such messages, with gRPC's library alone.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import grpc.aio
import uvloop

from bench.figures import table
from bench.serving.clients import AskError, make_client
from bench.serving.load_generator import closed_loop, probe
from bench.serving.processes import cpu_seconds
from bench.serving.targets import free_ports
from bench.serving.workloads import Sizes, text_session
from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.native.process_table import command_line, family
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.processes.run import run as run_server
from glimpse.server.settings import EngineSettings, ListenSettings, Settings

_READY = "ready"
_BARE_METHOD = "/bare/Stream"
_BARE_MESSAGE = b"x" * 250
_BEGIN_SECONDS = 2.0
_END_SECONDS = 0.5
_KINDS = ("supervisor", "front end", "Envoy")
_MARKS = {"processes.front_end": "front end", "scripted_engine": "engine", "envoy": "Envoy"}
"""Part of a command line → what the process is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU time of all processes of one kind."""

    process: str
    microseconds_per_token: float
    steady_microseconds: float
    """From `_BEGIN_SECONDS` after the begin to `_END_SECONDS` before the end."""
    share_of_core: float


class Meter:
    """Reads the CPU time of processes while streams run."""

    def __init__(self, processes: dict[str, list[int]], seconds: float) -> None:
        """`processes`: by kind. `seconds`: how long the streams run, at least."""
        self._processes = processes
        self._seconds = seconds
        self._readings: list[tuple[float, dict[str, float]]] = []

    def read(self) -> None:
        used = {kind: cpu_seconds(each) for kind, each in self._processes.items()}
        self._readings.append((time.perf_counter(), used))

    async def read_between(self) -> None:
        """Reads after the begin and before the end."""
        await asyncio.sleep(_BEGIN_SECONDS)
        self.read()
        await asyncio.sleep(self._seconds - _BEGIN_SECONDS - _END_SECONDS)
        self.read()

    def costs(self, token_times: list[float]) -> list[Cost]:
        """Returns the cost of each kind; the readings are those of the begin, in between, and of the end."""
        (first, begin), (second, after_begin), (third, before_end), (last, end) = self._readings
        num_steady = sum(second <= at < third for at in token_times)
        return [
            Cost(
                process=kind,
                microseconds_per_token=1e6 * (end[kind] - begin[kind]) / len(token_times),
                steady_microseconds=1e6 * (before_end[kind] - after_begin[kind]) / num_steady,
                share_of_core=(end[kind] - begin[kind]) / (last - first),
            )
            for kind in self._processes
        ]


async def serve(checkpoint: Path, step_ms: float, num_front_ends: int, port: int, http_port: int) -> None:
    """Serves until killed. Prints a line once all of it has started: that would count as the cost of streams."""
    settings = Settings(
        engine=EngineSettings(model=str(checkpoint)),
        listen=ListenSettings(port=port, metrics_port=0, front_ends=num_front_ends, log_level="warning"),
    )
    configure_logging(settings.listen.log_level)
    command = [sys.executable, "-m", "tests.engine.scripted_engine", "counts", f"--step-ms={step_ms}"]
    await run_server(
        settings,
        find_checkpoint(settings.engine),
        http_port=http_port,
        on_loading=lambda _: None,
        on_ready=lambda *_: print(_READY, flush=True),
        engine_command=command,
    )


async def measure(
    target: str, pid: int, *, num_streams: int, num_tokens: int, seconds: float
) -> tuple[list[Cost], float]:
    """Runs the streams. Returns their costs, and the median time between two chunks in milliseconds."""
    draw = random.Random()
    async with make_client(target, model=None if target.startswith("http") else "", ignore_eos=True) as client:
        prompts = await probe(client, draw)
        sizes = Sizes(prompt_tokens=64, side=0, num_turns=1)
        sessions = [text_session(draw, prompts, sizes) for _ in range(num_streams)]
        processes = _by_kind(pid)
        meter = Meter({kind: processes[kind] for kind in _KINDS if kind in processes}, seconds)
        meter.read()
        streams = closed_loop(client, sessions, concurrency=num_streams, max_tokens=num_tokens, on_answer=lambda: None)
        gathered, _ = await asyncio.gather(streams, meter.read_between())
        meter.read()
    if gathered.failures:
        raise AskError(gathered.failures[0])
    arrivals = [answer.token_times for _, answer in gathered.answers]
    return meter.costs([*chain(*arrivals)]), 1000 * _median_gap(arrivals)


async def serve_bare(port: int, step_ms: float, num_tokens: int) -> None:
    """Writes as many messages to each stream, one in each step. Serves until killed."""
    waiting = list[asyncio.Future[None]]()

    async def stream(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        for _ in range(num_tokens):
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]
            await context.write(_BARE_MESSAGE)

    _, service, method = _BARE_METHOD.split("/")
    server = grpc.aio.server()
    handlers = {method: grpc.unary_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(_READY, flush=True)
    while True:
        await asyncio.sleep(step_ms / 1000)
        for future in waiting:
            future.set_result(None)
        waiting.clear()


async def measure_bare(port: int, pid: int, *, num_streams: int, seconds: float) -> tuple[list[Cost], float]:
    """Runs the streams of the bare server. Returns as `measure`."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_stream(_BARE_METHOD)

        async def times() -> list[float]:
            return [time.perf_counter() async for _ in call(b"")]

        meter = Meter({"bare server": [pid]}, seconds)
        meter.read()
        reading = asyncio.create_task(meter.read_between())
        arrivals = await asyncio.gather(*(times() for _ in range(num_streams)))
        await reading
        meter.read()
    return meter.costs([*chain(*arrivals)]), 1000 * _median_gap(arrivals)


def _median_gap(arrivals: Iterable[Sequence[float]]) -> float:
    """Returns the median time between two arrivals of a stream, in seconds."""
    return median(after - before for each in arrivals for before, after in pairwise(each))


def _by_kind(root: int) -> dict[str, list[int]]:
    """Returns the process ids of a server by what the processes are."""
    found: dict[str, list[int]] = {}
    for pid in family(root):
        words = command_line(pid)
        kind = next((kind for mark, kind in _MARKS.items() if mark in words), "launcher")
        found.setdefault("root" if pid == root else kind, []).append(pid)
    found["supervisor" if "front end" in found else "front end"] = found.pop("root")
    return found


@contextmanager
def _serving(*options: str) -> Generator[int]:
    """Yields the process id of a server that this module's options start."""
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "bench.serving.frontend", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            if server.stdout.readline().strip() != _READY:
                raise AskError("the server did not start")
            yield server.pid
        finally:
            server.kill()  # its engine and its gateway end with it
            server.wait()


async def run(arguments: argparse.Namespace) -> str:
    """Measures REST and gRPC; returns the table."""
    rows: list[list[str]] = []
    num_tokens = round(1000 * arguments.seconds / arguments.step_ms)
    port, http_port = free_ports(2)
    options = [f"--step-ms={arguments.step_ms}", f"--checkpoint={arguments.checkpoint}"]
    options += [f"--front-ends={arguments.front_ends}", f"--serve={port},{http_port}"]
    with _serving(*options) as pid:
        for protocol, target in (("REST", f"http://127.0.0.1:{http_port}/v1"), ("gRPC", f"grpc://127.0.0.1:{port}")):
            costs, gap_ms = await measure(
                target, pid, num_streams=arguments.streams, num_tokens=num_tokens, seconds=arguments.seconds
            )
            rows += [_row(protocol, cost, gap_ms) for cost in costs]
    with _serving(f"--step-ms={arguments.step_ms}", f"--seconds={arguments.seconds}", f"--serve-bare={port}") as pid:
        costs, gap_ms = await measure_bare(port, pid, num_streams=arguments.streams, seconds=arguments.seconds)
        rows += [_row("gRPC", cost, gap_ms) for cost in costs]
    return table(["protocol", "process", "µs a token", "steady", "of a core", "between chunks"], rows)


def _row(protocol: str, cost: Cost, gap_ms: float) -> list[str]:
    microseconds = [f"{cost.microseconds_per_token:.0f}", f"{cost.steady_microseconds:.0f}"]
    return [protocol, cost.process, *microseconds, f"{100 * cost.share_of_core:.1f} %", f"{gap_ms:.2f} ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_MODEL, help="whose tokenizer and template are used")
    parser.add_argument("--front-ends", type=int, default=1)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=30.0, help="between one token of a stream and the next")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each run, 3 s at least")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # PORT,HTTP_PORT: how it starts its own server
    parser.add_argument("--serve-bare", type=int, help=argparse.SUPPRESS)  # PORT
    arguments = parser.parse_args()
    if arguments.serve_bare:
        num_tokens = round(1000 * arguments.seconds / arguments.step_ms)
        uvloop.run(serve_bare(arguments.serve_bare, arguments.step_ms, num_tokens))
    elif arguments.serve:
        port, http_port = map(int, arguments.serve.split(","))
        uvloop.run(serve(arguments.checkpoint, arguments.step_ms, arguments.front_ends, port, http_port))
    else:
        os.nice(5)
        print(uvloop.run(run(arguments)))


if __name__ == "__main__":
    main()
