"""Runs jobs under atheris: `python -m tests.fuzz.process PROCESSES` reads them as JSON; see `tests.fuzz`.

It forks a process for each job, several at a time, and fails if one of them fails. atheris exits these processes
itself: with status 0 after its runs or its time, and with another status if the target failed.
"""

import os
import sys
import tempfile
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import atheris
import msgspec

from tests.fuzz.jobs import Job

with atheris.instrument_imports(include=["glimpse", "PIL", "yarl"]):  # pyright: ignore[reportAttributeAccessIssue] - it exists
    import PIL.Image

    _targets: Any = import_module("tests.fuzz.targets")
    _tensors: Any = import_module("tests.fuzz.tensors")

    PIL.Image.init()  # imports all formats now instead of at their first use
_seeds: Any = import_module("tests.fuzz.seeds")

_OUTPUT = "output"
"""The file of what a process writes."""


def main() -> None:
    jobs = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Job])
    at_once, failed = int(sys.argv[1]), list[str]()
    running: dict[int, Job] = {}
    with tempfile.TemporaryDirectory() as folder:
        while jobs or running:
            if jobs and len(running) < at_once:
                job = jobs.pop(0)
                running[_fork(job, Path(folder, job.target))] = job
                continue
            pid, status = os.wait()
            job = running.pop(pid)
            print(job.title, Path(folder, job.target, _OUTPUT).read_text(errors="replace"), sep="\n", flush=True)
            failed += [job.target] if status else []
    if failed:
        sys.exit(f"fuzzing failed for: {', '.join(failed)}")


def _fork(job: Job, folder: Path) -> int:
    """Returns the id of a process that runs a job, with its files and its output in a new folder."""
    folder.mkdir()
    with (folder / _OUTPUT).open("wb") as output:
        if pid := os.fork():
            return pid
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    try:
        _fuzz(job, folder)
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _fuzz(job: Job, folder: Path) -> None:
    uses_torch = job.target in _tensors.TARGETS
    seeds = folder / "seeds"
    inputs = folder / "inputs" if job.inputs is None else Path(job.inputs)
    seeds.mkdir()
    inputs.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate((_tensors if uses_torch else _seeds).seeds_of(job.target)):
        (seeds / str(index)).write_bytes(seed)
    if uses_torch:
        _prepare_torch()
    atheris.Setup(
        [sys.argv[0], *job.options, str(inputs), str(seeds)], (_targets.TARGETS | _tensors.TARGETS)[job.target]
    )
    atheris.Fuzz()


def _prepare_torch() -> None:
    warnings.simplefilter("ignore")  # torch warns about unusual pickles
    # Only this part of torch: instrumenting all of it takes minutes.
    unpickler: Any = import_module("torch._weights_only_unpickler").Unpickler
    instrumented: Any = atheris.instrument_func(unpickler.load)  # pyright: ignore[reportAttributeAccessIssue] - the same
    unpickler.load = instrumented
    limits: Any = import_module("glimpse.media.workers.rlimits")
    limits.limit_memory(
        limits.memory_in_use() + import_module("glimpse.media.embeddings.torch_files").LIMITS.memory_bytes
    )


if __name__ == "__main__":
    main()
