"""Compiles the native kernels, once for each state of sources, flags and compiler. Knows g++, no kernels and no torch.

The library lies in the user's cache folder under a name that is a hash of all that it is made from, and appears there
whole or not at all, so processes may build it at the same time. `python -m engine.native.build FILE` compiles it
beforehand, for an image without a compiler; GLIMPSE_NATIVE_LIBRARY=FILE then says where it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
"""`-Wno-psabi`: vectors wider than the baseline's registers are passed between inlined functions only."""
SOURCES = Path(__file__).parent
LIBRARY_VARIABLE = "GLIMPSE_NATIVE_LIBRARY"


class BuildError(Exception):
    """The kernels cannot be compiled here; the message says why."""


def build_library(on_progress: Callable[[str], None]) -> Path:
    """The compiled library: the one that the environment names, or from the cache, or made now.

    Args:
        on_progress: called with what is being done, if it takes time.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    if given := os.environ.get(LIBRARY_VARIABLE):
        return Path(given)
    compiler = _find_compiler()
    library = cache_folder() / f"native-{_fingerprint(compiler)}.so"
    if not library.exists():
        on_progress("compiling the native kernels (once on this machine)")
        _compile(compiler, library)
    return library


def cache_folder() -> Path:
    """Where compiled libraries are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glimpse"


def _find_compiler() -> str:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("there is no C++ compiler: install g++, or name one in the environment variable CXX")
    return compiler


def _fingerprint(compiler: str) -> str:
    digest = hashlib.sha256(_run([compiler, "--version"]).encode())
    digest.update(" ".join(FLAGS).encode())
    for source in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(f"\0{source.name}\0".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            objects = _compile_sources(compiler, Path(folder))
            linked = Path(folder) / "linked.so"
            _run([compiler, "-shared", "-fopenmp", *map(str, objects), "-o", str(linked)])
            linked.replace(library)
    except OSError as error:
        raise BuildError(f"the compiled library cannot be written to {library.parent}: {error}") from error


def _compile_sources(compiler: str, folder: Path) -> list[Path]:
    def compile_one(source: Path) -> Path:
        compiled = folder / f"{source.stem}.o"
        _run([compiler, *FLAGS, "-c", str(source), "-o", str(compiled)])
        return compiled

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compile_one, sorted(SOURCES.glob("*.cpp"))))


def _run(command: Sequence[str]) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{finished.stderr.strip()[-2000:]}")
    return finished.stdout


if __name__ == "__main__":
    try:
        _compile(_find_compiler(), Path(sys.argv[1]).resolve())
    except IndexError:
        sys.exit("usage: python -m engine.native.build FILE")
    except BuildError as error:
        sys.exit(str(error))
