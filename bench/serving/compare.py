"""Runs Glimpse and its peers in turn on one checkpoint, on this machine, and prints ratios with their spread.

    python -m bench.serving.compare CHECKPOINT --rounds 5 --out results.jsonl \\
        --peer 'vllm http://127.0.0.1:8102/v1 /path/to/start-vllm {checkpoint} 8102' \\
        --peer 'transformers {checkpoint}@http://127.0.0.1:8103/v1 /path/to/start-transformers {checkpoint} 8103'
    python -m bench.serving.compare CHECKPOINT --llama-cpp BINARIES GGUF_FILES --llama-weights BF16 Q8_0
    python -m bench.serving.compare CHECKPOINT --show results.jsonl

A peer is NAME [MODEL@]URL COMMAND…: the command runs in the foreground and serves OpenAI's API at the URL and /health
next to it; MODEL is the name to request if the peer lists none. llama.cpp's server is started from the folder of its
binaries and the folder of the converted checkpoint, once for each type of weights.

Each round starts every server, runs all cases and stops it; with --keep-servers, all servers start once. The order
rotates between rounds. Glimpse is served through Envoy. Each run is appended to the results as it ends, and an
interrupted comparison prints the tables of what it has.
"""

import argparse
import json
import math
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from bench.serving.comparison import CASES, START, Run, case_options, comparison
from bench.serving.peers.llama_cpp import llama_cpp
from bench.serving.targets import Started, Target, TargetError, glimpse, parse_peer, started
from glimpse.native.processors import usable_processors

_ROOT = Path(__file__).resolve().parents[2]
_CASE_SECONDS = 1800
_INTERRUPTED = 130
"""Exit status, as a shell reports an interrupted program."""
_Item = TypeVar("_Item")


Cases = Mapping[str, Sequence[str]]
"""Case → options of bench.serving.serve."""


def restarting(rounds: Iterable[int], targets: Sequence[Target], cases: Cases, folder: Path) -> Iterator[Run]:
    """Starts each target in each round and runs all cases on it. Raises TargetError."""
    for number in rounds:
        for target in rotated(targets, number):
            _say(f"round {number + 1}: starting {target.name}")
            with started(target, _log(folder, target)) as server:
                yield _start(number, target, server)
                for case, options in cases.items():
                    yield from _run_case(number, target, server, case, options, folder)


def keeping(rounds: Iterable[int], targets: Sequence[Target], cases: Cases, folder: Path) -> Iterator[Run]:
    """Starts all targets once and runs each case on one after the other. Raises TargetError."""
    with ExitStack() as running:
        servers: list[tuple[Target, Started]] = []
        for target in targets:
            _say(f"starting {target.name}")
            server = running.enter_context(started(target, _log(folder, target)))
            servers.append((target, server))
            yield _start(0, target, server)
        for number in rounds:
            for case, options in cases.items():
                for target, server in rotated(servers, number):
                    yield from _run_case(number, target, server, case, options, folder)


def rotated(items: Sequence[_Item], count: int) -> list[_Item]:
    """Returns the items with the first `count` ones moved to the end, one after the other."""
    first = count % len(items)
    return [*items[first:], *items[:first]]


def rounds_within(count: int, seconds: float, now: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Yields numbers of rounds from 0; ends early if one more, as long as the longest, would exceed the time.

    The time begins with the first round, which is always yielded.
    """
    begun = ended = now()
    longest = 0.0
    for number in range(count):
        if number and ended - begun + longest > seconds:
            _say(f"{number} of {count} rounds fit into the time")
            return
        yield number
        before, ended = ended, now()
        longest = max(longest, ended - before)


def _log(folder: Path, target: Target) -> Path:
    return folder / f"{target.name}.log"


def _start(number: int, target: Target, server: Started) -> Run:
    times = {"healthy_seconds": server.healthy_seconds, "first_answer_seconds": server.first_answer_seconds}
    return Run(round=number, target=target.name, case=START, report=times)


def _run_case(
    number: int, target: Target, server: Started, case: str, options: Sequence[str], folder: Path
) -> Iterator[Run]:
    """Yields the run of a case; nothing if an answer failed, because rates over fewer answers are not comparable."""
    _say(f"round {number + 1}: {target.name}: {case}")
    file = folder / "report.json"
    command = [sys.executable, "-m", "bench.serving.serve", f"--url={target.url}", f"--pid={server.pid}"]
    model = [f"--model={target.model}"] if target.model else []
    # A round's questions are the same for all targets, and new to each of them.
    words = [*command, f"--json={file}", f"--seed={number}", *model, *options]
    result = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, timeout=_CASE_SECONDS, check=False)
    if result.returncode == 0:
        yield Run(round=number, target=target.name, case=case, report=json.loads(file.read_text()))
    else:
        _say(f"{target.name}: {case} failed:\n{result.stdout[-1000:]}{result.stderr[-1000:]}")


def describe(arguments: argparse.Namespace, targets: Sequence[Target]) -> dict[str, Any]:
    """Describes the machine and the run."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=_ROOT, capture_output=True, text=True, check=False)
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip(),
        "processor": f"{len(usable_processors())} x {names[0] if names else platform.processor()}",
        "memory": next((line.split(None, 1)[1].strip() for line in _lines("/proc/meminfo")), ""),
        "checkpoint": str(arguments.checkpoint),
        "glimpse": arguments.glimpse,
        "rounds": arguments.rounds,
        "servers": "kept" if arguments.keep_servers else "started in each round",
        "sessions_share": arguments.sessions_share,
        "targets": {target.name: " ".join(target.command) for target in targets},
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def show(results: Path) -> str:
    """Formats the tables of earlier results."""
    about, *lines = (json.loads(line) for line in results.read_text().splitlines())
    runs = [Run(**line) for line in lines]
    targets = list(about["targets"])
    head = "\n".join(f"- {name}: {value}" for name, value in about.items())
    return f"{head}\n\n{comparison(runs, targets)}"


def run_all(arguments: argparse.Namespace) -> None:
    """Runs the rounds and appends each result."""
    checkpoint = arguments.checkpoint.resolve()
    targets = [glimpse(checkpoint, arguments.glimpse), *_peers(arguments, checkpoint)]
    cases = {case: case_options(case, sessions_share=arguments.sessions_share) for case in arguments.cases}
    runs = keeping if arguments.keep_servers else restarting
    with arguments.out.open("w") as results, tempfile.TemporaryDirectory() as folder:
        results.write(json.dumps(describe(arguments, targets)) + "\n")
        results.flush()
        rounds = rounds_within(arguments.rounds, 60 * arguments.minutes)
        for run in runs(rounds, targets, cases, Path(folder)):
            results.write(json.dumps(asdict(run)) + "\n")
            results.flush()


def _peers(arguments: argparse.Namespace, checkpoint: Path) -> Iterator[Target]:
    for text in arguments.peer:
        yield parse_peer(text, checkpoint)
    if arguments.llama_cpp:
        binaries, files = arguments.llama_cpp
        for weights in arguments.llama_weights:
            yield llama_cpp(binaries, files, weights, num_threads=len(usable_processors()))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a folder, such as bench.make_checkpoint writes")
    parser.add_argument(
        "--peer", action="append", default=[], help="NAME [MODEL@]URL COMMAND…; may be given several times"
    )
    parser.add_argument(
        "--llama-cpp",
        type=Path,
        nargs=2,
        metavar=("BINARIES", "GGUF_FILES"),
        help="folders of llama.cpp's binaries and of the checkpoint in its format: also compare with llama-server",
    )
    parser.add_argument(
        "--llama-weights", nargs="+", default=["BF16"], metavar="TYPE", help="such as Q8_0 or Q4_0 (default: BF16)"
    )
    parser.add_argument(
        "--glimpse", default="--kv-cache-bytes=2GiB", help="options of `glimpse up`, after an equals sign"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="from the first round: begin none that would end later, if it took as long as the longest before it "
        "(default: no limit)",
    )
    parser.add_argument(
        "--keep-servers",
        action="store_true",
        help="start all servers once and run each case on one after the other, while the others are idle. Rounds are "
        "shorter by the starts, and ratios compare runs closer in time; all servers must fit in memory together, "
        "their start is measured once, and their peak memory and caches grow over the rounds",
    )
    parser.add_argument(
        "--sessions-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of each case's sessions to run, but no fewer than it has at a time (default: 1)",
    )
    parser.add_argument(
        "--cases", nargs="+", choices=tuple(CASES), default=list(CASES), metavar="CASE", help="default: all"
    )
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"), help="file for the results")
    parser.add_argument("--show", type=Path, help="only print the tables of these results")
    arguments = parser.parse_args()
    # Ends like an interruption, so that the servers are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 0
    try:
        if arguments.show is None:
            status = _run_until_interrupted(arguments)
        print(show(arguments.show or arguments.out))
    except (TargetError, ValueError) as error:
        sys.exit(f"bench.serving.compare: {error}")
    sys.exit(status)


def _run_until_interrupted(arguments: argparse.Namespace) -> int:
    """Returns the exit status."""
    try:
        run_all(arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    main()
