"""Fuzzes what reads strangers' bytes: `python -m tests.fuzz [--seconds N] [--corpus FOLDER] [--steady] [TARGET …]`.

Each target has a process of its own, for its share of the seconds. It begins with the seeds of `tests.fuzz.seeds` and,
where a folder is given, with what earlier runs kept in FOLDER/TARGET; new finds are kept there. What makes a target
fail is written to FOLDER/crash-…, or to the current folder, and the exit status is 1. Coverage guides it through the
Python of `media` and of Pillow, and not through the C of decoders, which is tried all the same.

Each time is different, but for `--steady`: then a target has a number of runs instead of seconds, the same seeds and
the same dice, so that code that withstood them once goes on to do so. Only what the threads of video decoders do first
can still make a difference, of one input in thousands.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.targets import MAX_INPUT_BYTES

_PROCESS = (sys.executable, "-m", "tests.fuzz.process")
_LIMITS = (f"-max_len={MAX_INPUT_BYTES}", "-rss_limit_mb=3072", "-verbosity=0", "-print_final_stats=1")
_STEADY_RUNS = {
    "source": 60_000,
    "sniff": 20_000,
    "image": 6_000,
    "mp4": 50_000,
    "video": 30_000,
    "prepared video": 8_000,
    "audio": 5_000,
    "tensor": 5_000,
    "pickle": 4_000,
}
"""Of each target in the steady way: together little more than a minute of one processor."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(_STEADY_RUNS))
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--seconds", type=int, default=60, help="for all targets together")
    how_long.add_argument("--steady", action="store_true", help="the same runs each time")
    parser.add_argument("--corpus", type=Path, help="a folder that keeps what was found")
    options = parser.parse_args()
    targets = options.targets or list(_STEADY_RUNS)
    if unknown := set(targets) - _STEADY_RUNS.keys():
        parser.error(f"no such target: {', '.join(unknown)}")
    if options.steady and options.corpus is not None:
        parser.error("what earlier runs kept makes runs differ: --steady takes no --corpus")
    seconds = max(1, options.seconds // len(targets))
    failed = [
        target
        for target in targets
        if not (_fuzz_steadily(target) if options.steady else _fuzz(target, seconds, options.corpus))
    ]
    if failed:
        sys.exit(f"fuzzing found faults in: {', '.join(failed)}")


def _fuzz(target: str, seconds: int, corpus: Path | None) -> bool:
    """Whether the target withstood."""
    print(f"fuzzing {target} for {seconds} s", flush=True)
    return _run((*_PROCESS, target), f"-max_total_time={seconds}", "-timeout=30", corpus=corpus, target=target)


def _fuzz_steadily(target: str) -> bool:
    """As `_fuzz`, in the same way each time. The time limit for one input is one that any machine meets."""
    runs = _STEADY_RUNS[target]
    print(f"fuzzing {target} with {runs} inputs", flush=True)
    # What libFuzzer has seen of a program it tells by addresses.
    command = (*_fixed_addresses(), *_PROCESS, target)
    return _run(command, f"-runs={runs}", "-seed=1", "-timeout=300", corpus=None, target=target)


def _fixed_addresses() -> tuple[str, ...]:
    """What makes a command run with the same addresses each time; nothing where the system does not let us."""
    prefix = ("setarch", "--addr-no-randomize")
    try:
        allowed = subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        print("addresses cannot be fixed here: two runs will not be quite alike", flush=True)
    return prefix if allowed else ()


def _run(process: Sequence[str], *options: str, corpus: Path | None, target: str) -> bool:
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(temporary, "kept") if corpus is None else corpus / target
        kept.mkdir(parents=True, exist_ok=True)
        artifacts = f"-artifact_prefix={corpus or Path.cwd()}/crash-{target}-"
        command = [*process, f"{temporary}/seeds", *_LIMITS, *options, artifacts, str(kept)]
        return subprocess.run(command, check=False, env=os.environ | {"PYTHONHASHSEED": "0"}).returncode == 0


if __name__ == "__main__":
    main()
