"""Compiles C++ into libraries, once for each state of sources, flags and compiler. Knows g++, and no sources.

A library lies in the user's cache folder under a name that is a hash of all that it is made from, and appears there
whole or not at all, so processes may build it at the same time. Where there is to be no compiler, it is compiled
beforehand (`main`), and an environment variable says where it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """C++ that becomes one library."""

    name: str
    """Begins the library's file name, and stands before "kernels" in messages."""
    folder: Path
    """All of whose *.cpp are compiled."""
    flags: tuple[str, ...]
    """For compiling and for linking."""
    variable: str
    """The environment variable that names a library compiled beforehand."""


class BuildError(Exception):
    """A library cannot be compiled here; the message says why."""


def build_library(sources: Sources, on_progress: Callable[[str], None]) -> Path:
    """The compiled library: the one that the environment names, or from the cache, or made now.

    Args:
        sources: what it is made of.
        on_progress: called with what is being done, if it takes time.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    if given := os.environ.get(sources.variable):
        return Path(given)
    compiler = _find_compiler()
    library = cache_folder() / f"{sources.name}-{_fingerprint(sources, compiler)}.so"
    if not library.exists():
        on_progress(f"compiling the {sources.name} kernels (once on this machine)")
        _compile(sources, compiler, library)
    return library


def main(sources: Sources) -> None:
    """A program that compiles a library beforehand, to the file that is its one argument."""
    try:
        _compile(sources, _find_compiler(), Path(sys.argv[1]).resolve())
    except IndexError:
        sys.exit("which file? It is the argument")
    except BuildError as error:
        sys.exit(str(error))


def cache_folder() -> Path:
    """Where compiled libraries are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glimpse"


def _find_compiler() -> str:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("there is no C++ compiler: install g++, or name one in the environment variable CXX")
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

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compile_one, sorted(sources.folder.glob("*.cpp"))))


def _run(command: Sequence[str]) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{finished.stderr.strip()[-2000:]}")
    return finished.stdout
