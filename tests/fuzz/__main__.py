"""Fuzzes the parsers of untrusted bytes: `python -m tests.fuzz [--seconds N] [--corpus FOLDER] [TARGET …]`.

Each target runs in its own process for an equal share of the time, one on each core. The processes are forked from one
that has imported what they fuzz: to import it and to instrument it takes longer than most targets. What a target prints
appears when it has ended. It starts from the seeds of `tests.fuzz.seeds` and,
with --corpus, from the inputs that earlier runs stored in FOLDER/TARGET; new inputs are stored there. An input that
fails is written to FOLDER/crash-… or to the current folder, and the exit status is 1. Fuzzing is guided by the coverage
of the Python code of Glimpse and Pillow, not of the decoders' C code, although that runs too.

Runs are random unless `--deterministic` is given: then each target has a fixed number of runs, fixed seeds and a fixed
random seed, so that code that passed once keeps passing. Only the timing of video decoders' threads can still make a
difference, for about one input in thousands.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.fuzz.jobs import Job
from tests.fuzz.targets import MAX_INPUT_BYTES

_PROCESS = (sys.executable, "-m", "tests.fuzz.process")
_LIMITS = (
    f"-max_len={MAX_INPUT_BYTES}",
    "-rss_limit_mb=3072",
    "-verbosity=0",
    "-print_final_stats=1",
    # Never: an input fails at the timeout. From 10 s on, libFuzzer would write each to a file as one that failed.
    "-report_slow_units=300",
)
_NUM_RUNS = {
    "source": 15_000,
    "sniff": 4_000,
    "image": 1_500,
    "mp4": 12_500,
    "video": 7_500,
    "prepared video": 2_000,
    "animation": 1_000,
    "audio": 2_500,
    "document": 1_000,
    "form": 5_000,
    "message type": 1_000,
    "gguf": 2_500,
    "tensor": 2_500,
    "pickle": 2_000,
}
"""Runs of each target with --deterministic. Together they take half a minute of CPU time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_NUM_RUNS))
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--seconds", type=int, default=60, help="total time for all targets")
    how_long.add_argument(
        "--deterministic", action="store_true", help="the same number of runs and random seed each time"
    )
    parser.add_argument("--corpus", type=Path, help="a folder that stores interesting inputs")
    options = parser.parse_args()
    targets = options.targets or list(_NUM_RUNS)
    if unknown := set(targets) - _NUM_RUNS.keys():
        parser.error(f"unknown target: {', '.join(unknown)}")
    if options.deterministic and options.corpus is not None:
        parser.error("--deterministic and --corpus exclude each other: a corpus makes runs differ")
    num_cores = len(os.sched_getaffinity(0))
    if options.deterministic:
        jobs = [_deterministic_job(target) for target in targets]
    else:
        seconds = max(1, options.seconds * num_cores // len(targets))
        jobs = [_job(target, seconds, options.corpus) for target in targets]
    # libFuzzer identifies coverage by addresses.
    command = [*(_fixed_addresses() if options.deterministic else ()), *_PROCESS, str(num_cores)]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    status = subprocess.run(command, check=False, env=environment, input=msgspec.json.encode(jobs)).returncode
    if status:
        sys.exit(status)


def _job(target: str, seconds: int, corpus: Path | None) -> Job:
    title = f"fuzzing {target} for {seconds} s"
    inputs = None if corpus is None else str(corpus / target)
    limits = (f"-max_total_time={seconds}", "-timeout=30", f"-artifact_prefix={corpus or Path.cwd()}/crash-{target}-")
    return Job(title=title, target=target, inputs=inputs, options=(*_LIMITS, *limits))


def _deterministic_job(target: str) -> Job:
    """Returns a job with a fixed number of runs, and a timeout that suffices on any machine."""
    runs = _NUM_RUNS[target]
    limits = (f"-runs={runs}", "-seed=1", "-timeout=300", f"-artifact_prefix={Path.cwd()}/crash-{target}-")
    return Job(title=f"fuzzing {target} with {runs} inputs", target=target, inputs=None, options=(*_LIMITS, *limits))


def _fixed_addresses() -> tuple[str, ...]:
    """Returns a command prefix that disables address randomization, or nothing if the system does not allow it."""
    prefix = ("setarch", "--addr-no-randomize")
    try:
        allowed = subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        print("cannot disable address randomization: runs may differ slightly", flush=True)
    return prefix if allowed else ()


if __name__ == "__main__":
    main()
