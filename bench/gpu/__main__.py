"""All checks and measurements of a GPU in one call, each in a process of its own, with time limits.

    python -m bench.gpu OUT [--minutes 9.5] [--stage-minutes 2.5] [--shapes 2B 7B] [--only STAGE ...]
    python -m bench.gpu OUT --device cpu --shapes tiny      # whether the script works, where there is no GPU

Writes random checkpoints of the shapes into OUT unless they exist, then runs the stages of `bench.gpu.stage`, most
important first. After each stage OUT/gpu.json and OUT/gpu.md contain all results so far. A stage that fails or times
out is listed there and does not affect the others. No network is used.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.figures import significant, table
from bench.gpu.limits import device_name
from bench.gpu.stage import STAGES, Figure
from bench.make_checkpoint import PRESETS, make_checkpoint

_WITHOUT_CHECKPOINT = ("limits", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A stage that was started."""

    stage: str
    shape: str
    seconds: float
    figures: list[Figure]
    failure: str
    """The end of its output; empty on success."""


def stages(shapes: Sequence[str], chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(stage, shape), most important first; the shape is empty where it does not matter."""
    for stage in STAGES:
        if stage not in chosen:
            continue
        yield from [(stage, "")] if stage in _WITHOUT_CHECKPOINT else [(stage, shape) for shape in shapes]


def run_stage(stage: str, shape: str, *, out: Path, device: str, seconds: float) -> Done:
    """Runs one stage with a time limit in seconds."""
    command = [sys.executable, "-m", "bench.gpu.stage", stage, "--device", device, "--checkpoint", str(out / shape)]
    begun, failure = time.perf_counter(), ""
    with tempfile.TemporaryFile("w+") as output:
        try:
            done = subprocess.run(command, stdout=output, timeout=max(1.0, seconds), check=False)
            failure = f"exit status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            failure = f"out of time after {seconds:.0f} s"
        output.seek(0)
        lines = output.readlines()
    figures = [Figure(**json.loads(line)) for line in lines if line.startswith("{")]
    return Done(stage=stage, shape=shape, seconds=time.perf_counter() - begun, figures=figures, failure=failure)


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
    failures = [f"- {each.stage} {each.shape}: {each.failure}" for each in all_done if each.failure]
    return "\n".join([*lines, "", table(["what", "stage", "figure", "value", "beside"], rows), "", *failures, ""])


def environment_of(device: str) -> dict[str, str]:
    """Describes the machine."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": device_name(device),
        "commit": commit.stdout.strip() or "unknown",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
        "processors": str(os.cpu_count()),
    }


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
    for shape in arguments.shapes:
        if not (out / shape / "model.safetensors").exists():
            print(f"writing a checkpoint of the shape {shape}", file=sys.stderr)
            make_checkpoint(out / shape, PRESETS[shape], seed=0)
    environment = environment_of(arguments.device)
    all_done: list[Done] = []
    for stage, shape in stages(arguments.shapes, arguments.only):
        print(f"{stage} {shape}".strip(), file=sys.stderr)
        seconds = min(60 * arguments.stage_minutes, ends_at - time.perf_counter())
        all_done.append(run_stage(stage, shape, out=out, device=arguments.device, seconds=seconds))
        document = {"environment": environment, "stages": [asdict(each) for each in all_done]}
        (out / "gpu.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (out / "gpu.md").write_text(markdown(environment, all_done), encoding="utf-8")
    print(markdown(environment, all_done))
    return int(any(each.failure for each in all_done))


if __name__ == "__main__":
    sys.exit(main())
