"""CPU time per token of the front end and Envoy, with an engine that computes nothing and emits tokens at a fixed rate.

    python -m bench.serving.frontend [--front-ends 1] [--streams 16] [--step-ms 30] [--seconds 10]

Starts the server with `tests.engine.scripted_engine` and Envoy, runs the streams over REST and then over gRPC, and
prints the CPU time of the front end and of Envoy: microseconds per token, and the share of a core; and the median time
between two chunks at the client, of which each step gives a stream one. With several front ends it prints their sum,
and the supervisor's time.
"""

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import uvloop

from bench.figures import table
from bench.serving.clients import AskError, make_client
from bench.serving.load_generator import closed_loop, probe
from bench.serving.processes import command_line, cpu_seconds, family
from bench.serving.workloads import Sizes, text_session
from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.processes.run import run as run_server
from glimpse.server.settings import EngineSettings, ListenSettings, Settings

_READY = "ready"
_KINDS = ("supervisor", "front end", "Envoy")
_MARKS = {"processes.front_end": "front end", "scripted_engine": "engine", "envoy": "Envoy"}
"""Part of a command line → what the process is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU time of all processes of one kind."""

    process: str
    microseconds_per_token: float
    share_of_core: float


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


async def measure(target: str, pid: int, *, num_streams: int, num_tokens: int) -> tuple[list[Cost], float]:
    """Runs the streams. Returns their costs, and the median time between two chunks in milliseconds."""
    draw = random.Random()
    async with make_client(target, model=None if target.startswith("http") else "", ignore_eos=True) as client:
        prompts = await probe(client, draw)
        sizes = Sizes(prompt_tokens=64, side=0, num_turns=1)
        sessions = [text_session(draw, prompts, sizes) for _ in range(num_streams)]
        processes = _by_kind(pid)
        before = {kind: cpu_seconds(each) for kind, each in processes.items()}
        begun = time.perf_counter()
        gathered = await closed_loop(
            client, sessions, concurrency=num_streams, max_tokens=num_tokens, on_answer=lambda: None
        )
        seconds = time.perf_counter() - begun
    if gathered.failures:
        raise AskError(gathered.failures[0])
    tokens = sum(answer.output_tokens for _, answer in gathered.answers)
    used = {kind: cpu_seconds(each) - before[kind] for kind, each in processes.items()}
    gaps = [after - before for _, answer in gathered.answers for before, after in pairwise(answer.token_times)]
    costs = [
        Cost(process=kind, microseconds_per_token=1e6 * used[kind] / tokens, share_of_core=used[kind] / seconds)
        for kind in _KINDS
        if kind in used
    ]
    return costs, 1000 * median(gaps)


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
def _serving(checkpoint: Path, step_ms: float, num_front_ends: int) -> Generator[tuple[int, int, int]]:
    """Yields the server's process id, its gRPC port and Envoy's port."""
    port, http_port = _free_port(), _free_port()
    options = [f"--checkpoint={checkpoint}", f"--step-ms={step_ms}", f"--front-ends={num_front_ends}"]
    options.append(f"--serve={port},{http_port}")
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "bench.serving.frontend", *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            if server.stdout.readline().strip() != _READY:
                raise AskError("the server did not start")
            yield server.pid, port, http_port
        finally:
            server.kill()  # its engine and its gateway end with it
            server.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def run(arguments: argparse.Namespace) -> str:
    """Measures REST and gRPC; returns the table."""
    rows: list[list[str]] = []
    num_tokens = round(1000 * arguments.seconds / arguments.step_ms)
    with _serving(arguments.checkpoint, arguments.step_ms, arguments.front_ends) as (pid, port, http_port):
        for protocol, target in (("REST", f"http://127.0.0.1:{http_port}/v1"), ("gRPC", f"grpc://127.0.0.1:{port}")):
            costs, gap_ms = await measure(target, pid, num_streams=arguments.streams, num_tokens=num_tokens)
            for cost in costs:
                figures = [
                    f"{cost.microseconds_per_token:.0f}",
                    f"{100 * cost.share_of_core:.1f} %",
                    f"{gap_ms:.2f} ms",
                ]
                rows.append([protocol, cost.process, *figures])
    return table(["protocol", "process", "µs a token", "of a core", "between chunks"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_MODEL, help="whose tokenizer and template are used")
    parser.add_argument("--front-ends", type=int, default=1)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=30.0, help="between one token of a stream and the next")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each run, in seconds")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # PORT,HTTP_PORT: how it starts its own server
    arguments = parser.parse_args()
    if arguments.serve:
        port, http_port = map(int, arguments.serve.split(","))
        uvloop.run(serve(arguments.checkpoint, arguments.step_ms, arguments.front_ends, port, http_port))
    else:
        os.nice(5)
        print(uvloop.run(run(arguments)))


if __name__ == "__main__":
    main()
