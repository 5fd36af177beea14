"""All checks and measurements of a GPU in one call, each in a process of its own, with time limits.

    python -m bench.gpu OUT [--minutes 9.5] [--stage-minutes 2.5] [--shapes 2B 7B] [--only STAGE ...]
    python -m bench.gpu OUT --device cpu --shapes tiny      # whether the script works, where there is no GPU

Runs the stages of `bench.gpu.stage`, most important first, and writes a random checkpoint of each shape into OUT before
its first stage unless it exists. After each stage OUT/gpu.json and OUT/gpu.md contain all results so far. A stage that
fails or times out, or a checkpoint that cannot be written, is listed there with the end of its output; all is in
OUT/logs. It does not affect the others. No network is used.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.figures import significant, table
from bench.gpu.limits import device_name
from bench.gpu.stage import STAGES, Figure
from bench.make_checkpoint import PRESETS

_WITHOUT_CHECKPOINT = ("limits", "tests")
_NUM_FAILURE_LINES = 20
"""Lines of a failed stage's output in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A stage that was started."""

    stage: str
    shape: str
    seconds: float
    figures: list[Figure]
    failure: str
    """What happened, and the end of its output; empty on success."""


def stages(shapes: Sequence[str], chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(stage, shape), most important first; the shape is empty where it does not matter."""
    for stage in STAGES:
        if stage not in chosen:
            continue
        yield from [(stage, "")] if stage in _WITHOUT_CHECKPOINT else [(stage, shape) for shape in shapes]


def run_stage(stage: str, shape: str, *, out: Path, device: str, seconds: float) -> Done:
    """Runs one stage with a time limit in seconds."""
    command = [sys.executable, "-m", "bench.gpu.stage", stage, "--device", device, "--checkpoint", str(out / shape)]
    return _run(command, stage, shape, out=out, seconds=seconds)


def write_checkpoint(shape: str, *, out: Path, seconds: float) -> Done:
    """Writes a checkpoint, or nothing if that fails."""
    command = [sys.executable, "-m", "bench.make_checkpoint", str(out / shape), "--preset", shape]
    done = _run(command, "checkpoint", shape, out=out, seconds=seconds)
    if done.failure:
        shutil.rmtree(out / shape, ignore_errors=True)
    return done


def _run(command: Sequence[str], stage: str, shape: str, *, out: Path, seconds: float) -> Done:
    if seconds <= 0:
        return Done(stage=stage, shape=shape, seconds=0.0, figures=[], failure="not started: no time was left")
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    figures_path, log_path = (logs / f"{stage}{shape and '-'}{shape}.{suffix}" for suffix in ("json", "log"))
    begun = time.perf_counter()
    with figures_path.open("wb") as output, log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=output, stderr=log, start_new_session=True)
        try:
            status = process.wait(seconds)
            failure = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            failure = f"out of time after {seconds:.0f} s"
        finally:
            _end_group(process)
    figures = list(_figures(figures_path))
    if failure:
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_NUM_FAILURE_LINES:]
        failure = "\n".join([failure, *lines])
    return Done(stage=stage, shape=shape, seconds=time.perf_counter() - begun, figures=figures, failure=failure)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a stage with its own child processes, which would keep the device's memory from later stages."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _figures(path: Path) -> Iterator[Figure]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError):  # the last line of a stage that was ended may be incomplete
            yield Figure(**json.loads(line))


def markdown(environment: dict[str, str], all_done: Sequence[Done]) -> str:
    """Formats the report."""
    lines = [f"- {name}: {value}" for name, value in environment.items()]
    rows = [
        [
            each.shape or "machine",
            each.stage,
            figure.name,
            f"{significant(figure.value)} {figure.unit}".strip(),
            figure.aim,
        ]
        for each in all_done
        for figure in each.figures
    ]
    failures = [
        f"- {each.stage} {each.shape}: {each.failure}".replace("\n", "\n      ") for each in all_done if each.failure
    ]
    return "\n".join([*lines, "", table(["what", "stage", "figure", "value", "beside"], rows), "", *failures, ""])


def environment_of(device: str) -> dict[str, str]:
    """Describes the machine."""
    return {
        "device": _device(device),
        "commit": _commit(),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
        "processors": str(os.cpu_count()),
    }


def _device(device: str) -> str:
    try:
        return device_name(device)
    except (AssertionError, RuntimeError) as error:  # torch without CUDA, or without a device
        return f"none: {error}"


def _commit() -> str:
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def main() -> int:
    """Runs the stages; exits with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for checkpoints and results")
    parser.add_argument("--minutes", type=float, default=9.5, help="for everything (default: 9.5)")
    parser.add_argument("--stage-minutes", type=float, default=2.5, help="for one stage at most (default: 2.5)")
    parser.add_argument("--shapes", nargs="+", choices=tuple(PRESETS), default=["2B", "7B"], help="(default: 2B 7B)")
    parser.add_argument("--only", nargs="+", choices=tuple(STAGES), default=tuple(STAGES), metavar="STAGE")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    arguments = parser.parse_args()
    out: Path = arguments.out
    ends_at = time.perf_counter() + 60 * arguments.minutes
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the running stage is ended
    environment = environment_of(arguments.device)
    all_done: list[Done] = []

    def add(done: Done) -> None:
        all_done.append(done)
        print(*done.figures, *filter(None, [done.failure]), sep="\n", file=sys.stderr)
        document = {"environment": environment, "stages": [asdict(each) for each in all_done]}
        (out / "gpu.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (out / "gpu.md").write_text(markdown(environment, all_done), encoding="utf-8")

    without_checkpoint: set[str] = set()
    for stage, shape in stages(arguments.shapes, arguments.only):
        if shape and not (out / shape / "model.safetensors").exists() and shape not in without_checkpoint:
            print(f"writing a checkpoint of the shape {shape}", file=sys.stderr)
            add(written := write_checkpoint(shape, out=out, seconds=ends_at - time.perf_counter()))
            if written.failure:
                without_checkpoint.add(shape)
        if shape in without_checkpoint:
            continue
        print(f"{stage} {shape}".strip(), file=sys.stderr)
        seconds = min(60 * arguments.stage_minutes, ends_at - time.perf_counter())
        add(run_stage(stage, shape, out=out, device=arguments.device, seconds=seconds))
    print(markdown(environment, all_done))
    return int(any(each.failure for each in all_done))


if __name__ == "__main__":
    sys.exit(main())
