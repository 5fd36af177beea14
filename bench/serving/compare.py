"""Runs Glimpse and its peers in turn on one checkpoint, on this machine, and prints ratios with their spread.

    python -m bench.serving.compare CHECKPOINT --rounds 5 --out results.jsonl \\
        --peer 'vllm http://127.0.0.1:8102/v1 /path/to/start-vllm {checkpoint} 8102' \\
        --peer 'transformers {checkpoint}@http://127.0.0.1:8103/v1 /path/to/start-transformers {checkpoint} 8103'
    python -m bench.serving.compare CHECKPOINT --llama-cpp BINARIES GGUF_FILES --llama-weights BF16 Q8_0
    python -m bench.serving.compare CHECKPOINT --show results.jsonl

A peer is NAME [MODEL@]URL COMMAND…: the command runs in the foreground and serves OpenAI's API at the URL and /health
next to it; MODEL is the name to request if the peer lists none. llama.cpp's server is started from the folder of its
binaries and the folder of the converted checkpoint, once for each type of weights.

Each round starts every server, runs all cases and stops it; the order rotates between rounds. Glimpse is served through
Envoy. Each run is appended to the results as it ends, so that an interrupted comparison is not lost.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.serving.comparison import CASES, START, Run, comparison
from bench.serving.peers.llama_cpp import llama_cpp
from bench.serving.targets import Target, TargetError, glimpse, parse_peer, started

_ROOT = Path(__file__).resolve().parents[2]
_CASE_SECONDS = 1800


def run_round(number: int, target: Target, cases: Sequence[str], folder: Path) -> Iterator[Run]:
    """Starts a target and runs all cases on it."""
    with started(target, folder / f"{target.name}.log") as server:
        times = {"healthy_seconds": server.healthy_seconds, "first_answer_seconds": server.first_answer_seconds}
        yield Run(round=number, target=target.name, case=START, report=times)
        for case in cases:
            _say(f"round {number + 1}: {target.name}: {case}")
            report = _run_case(number, target, case, server.pid, folder / "report.json")
            if report is not None:
                yield Run(round=number, target=target.name, case=case, report=report)


def _run_case(number: int, target: Target, case: str, pid: int, file: Path) -> dict[str, Any] | None:
    """Returns the report of a case; None if an answer failed, because rates over fewer answers are not comparable."""
    command = [sys.executable, "-m", "bench.serving.serve", f"--url={target.url}", f"--pid={pid}", f"--json={file}"]
    model = [f"--model={target.model}"] if target.model else []
    # A round's questions are the same for all targets, and new to each of them.
    options = [f"--seed={number}", *model, *CASES[case]]
    result = subprocess.run(
        [*command, *options], cwd=_ROOT, capture_output=True, text=True, timeout=_CASE_SECONDS, check=False
    )
    if result.returncode != 0:
        _say(f"{target.name}: {case} failed:\n{result.stdout[-1000:]}{result.stderr[-1000:]}")
        return None
    return json.loads(file.read_text())


def describe(arguments: argparse.Namespace, targets: Sequence[Target]) -> dict[str, Any]:
    """Describes the machine and the run."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=_ROOT, capture_output=True, text=True, check=False)
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip(),
        "processor": f"{len(os.sched_getaffinity(0))} x {names[0] if names else platform.processor()}",
        "memory": next((line.split(None, 1)[1].strip() for line in _lines("/proc/meminfo")), ""),
        "checkpoint": str(arguments.checkpoint),
        "rounds": arguments.rounds,
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
    """Runs every round and appends each result."""
    checkpoint = arguments.checkpoint.resolve()
    targets = [glimpse(checkpoint, arguments.glimpse), *_peers(arguments, checkpoint)]
    with arguments.out.open("w") as results, tempfile.TemporaryDirectory() as folder:
        results.write(json.dumps(describe(arguments, targets)) + "\n")
        for number in range(arguments.rounds):
            first = number % len(targets)
            for target in [*targets[first:], *targets[:first]]:
                _say(f"round {number + 1} of {arguments.rounds}: starting {target.name}")
                for run in run_round(number, target, arguments.cases, Path(folder)):
                    results.write(json.dumps(asdict(run)) + "\n")
                    results.flush()


def _peers(arguments: argparse.Namespace, checkpoint: Path) -> Iterator[Target]:
    for text in arguments.peer:
        yield parse_peer(text, checkpoint)
    if arguments.llama_cpp:
        binaries, files = arguments.llama_cpp
        for weights in arguments.llama_weights:
            yield llama_cpp(binaries, files, weights, num_threads=len(os.sched_getaffinity(0)))


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cases", nargs="+", choices=tuple(CASES), default=list(CASES), metavar="CASE", help="default: all"
    )
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"), help="file for the results")
    parser.add_argument("--show", type=Path, help="only print the tables of these results")
    arguments = parser.parse_args()
    try:
        if arguments.show is None:
            run_all(arguments)
        print(show(arguments.show or arguments.out))
    except (TargetError, ValueError) as error:
        sys.exit(f"bench.serving.compare: {error}")


if __name__ == "__main__":
    main()
