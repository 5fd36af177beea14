"""Compiles C++ sources into shared libraries with g++ and caches them.

A library is stored in the user's cache folder under a hash of its sources, flags and compiler. It is moved there
atomically, so several processes can build it at once. For machines without a compiler, `main` compiles it ahead of
time, and an environment variable names the file.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from glimpse.native.processors import num_processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The C++ sources of a library."""

    name: str
    """Prefix of the library's file name, and name of the kernels in messages."""
    folder: Path
    """Folder whose *.cpp files are compiled."""
    flags: tuple[str, ...]
    """Flags for compiling and linking."""
    variable: str
    """Environment variable with the path of a library compiled ahead of time."""


class BuildError(Exception):
    """A library cannot be compiled on this machine; the message says why."""


def build_library(sources: Sources, on_progress: Callable[[str], None]) -> Path:
    """Returns the path of the library: from the environment variable, from the cache, or compiled now.

    Args:
        sources: sources of the library.
        on_progress: called with a description if the library must be compiled.

    Raises:
        BuildError: the kernels are not written for this machine, there is no compiler, or compilation fails.
    """
    if (machine := (platform.system(), platform.machine())) != ("Linux", "x86_64"):
        raise BuildError(f"the {sources.name} kernels require Linux on x86-64, this is {' on '.join(machine)}")
    if path := os.environ.get(sources.variable):
        return Path(path)
    compiler = _find_compiler()
    library = cache_folder() / f"{sources.name}-{_fingerprint(sources, compiler)}.so"
    if not library.exists():
        on_progress(f"compiling the {sources.name} kernels (once on this machine)")
        _compile(sources, compiler, library)
    return library


def main(sources: Sources) -> None:
    """Command line program: compiles a library ahead of time to the file named by its argument."""
    try:
        _compile(sources, _find_compiler(), Path(sys.argv[1]).resolve())
    except IndexError:
        sys.exit("missing argument: the file to write the library to")
    except BuildError as error:
        sys.exit(str(error))


def cache_folder() -> Path:
    """Returns the folder of cached libraries."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glimpse"


def _find_compiler() -> str:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("no C++ compiler found: install g++, or name a compiler in the environment variable CXX")
    return compiler


def _fingerprint(sources: Sources, compiler: str) -> str:
    digest = hashlib.sha256(_run([compiler, "--version"]).encode())
    digest.update(" ".join(sources.flags).encode())
    for file in sorted([*sources.folder.glob("*.cpp"), *sources.folder.glob("*.h")]):
        digest.update(f"\0{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _compile(sources: Sources, compiler: str, library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            objects = _compile_each(sources, compiler, Path(folder))
            linked = Path(folder) / "linked.so"
            _run([compiler, "-shared", *sources.flags, *map(str, objects), "-o", str(linked)])
            linked.replace(library)
    except OSError as error:
        raise BuildError(f"the compiled library cannot be written to {library.parent}: {error}") from error


def _compile_each(sources: Sources, compiler: str, folder: Path) -> list[Path]:
    def compile_one(source: Path) -> Path:
        compiled = folder / f"{source.stem}.o"
        _run([compiler, *sources.flags, "-c", str(source), "-o", str(compiled)])
        return compiled

    with ThreadPoolExecutor(num_processors()) as threads:
        return list(threads.map(compile_one, sorted(sources.folder.glob("*.cpp"))))


def _run(command: Sequence[str]) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{finished.stderr.strip()[-2000:]}")
    return finished.stdout
