"""Compiles C++ sources into shared libraries with g++ or clang++ and caches them.

A library is stored in the user's cache folder under a hash of its sources, flags and compiler. It is moved there
atomically; of several processes that need it, one compiles it and the others wait. For machines without a compiler,
`main` compiles it ahead of time: to a file that an environment variable names, or next to its sources, under a hash of
these and the flags. A wheel takes it along from there, and a library of other sources is never used.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from glimpse.native.processors import num_processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The C++ sources of a library."""

    name: str
    """Prefix of the library's file name, and name of the kernels in messages."""
    folder: Path
    """Folder whose *.cpp files are compiled; `files` says which."""
    flags: tuple[str, ...]
    """Flags for compiling and linking."""
    variable: str
    """Environment variable with the path of a library compiled ahead of time."""

    def files(self, machine: str) -> list[Path]:
        """Returns the files for an architecture, as `platform.machine` names it: all but those for others."""
        others = [pattern for machines, pattern in _FILES_OF.items() if machine not in machines]
        found = sorted(self.folder.glob("*.cpp"))
        return [file for file in found if not any(re.search(pattern, file.stem) for pattern in others)]


_FILES_OF = {("x86_64",): "_(x86|avx|amx)", ("aarch64", "arm64"): "_neon"}
"""What the names of files for some architectures have, by those that `platform.machine` names so."""
_MACHINES = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")}
"""Systems and architectures that kernels are written for."""

_PREFIX = "compiling-"
"""Begins the name of the folder that a library is compiled in."""
_MAX_SECONDS = 3600.0
"""More than a library takes: an older folder is of a process that was killed."""


class BuildError(Exception):
    """A library cannot be compiled on this machine; the message says why."""


def build_library(sources: Sources, on_progress: Callable[[str], None]) -> Path:
    """Returns the path of the library: from the environment variable, next to the sources, from the cache, or compiled.

    Args:
        on_progress: called with a description if the library must be compiled.

    Raises:
        BuildError: the kernels are not written for this machine, there is no compiler, or compilation fails.
    """
    _check_machine(sources)
    if path := os.environ.get(sources.variable):
        return Path(path)
    packaged = packaged_library(sources)
    return packaged if packaged.exists() else _cached_library(sources, on_progress)


def main(sources: Sources) -> None:
    """Command line program: compiles a library ahead of time, to the file that its argument names.

    With `--package` instead, to the file next to the sources that a wheel contains; others there are removed.
    """
    parser = argparse.ArgumentParser(description=f"Compiles the {sources.name} kernels ahead of time.")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("file", nargs="?", type=Path, help=f"where to write the library; set {sources.variable} to it")
    to.add_argument("--package", action="store_true", help="write it next to its sources, where wheels take it from")
    arguments = parser.parse_args()
    try:
        _check_machine(sources)
        if arguments.package:
            _package(sources)
        else:
            _compile(sources, _find_compiler(), arguments.file.resolve(), replaces=True)
    except BuildError as error:
        sys.exit(str(error))


def packaged_library(sources: Sources) -> Path:
    """Returns where a library that was compiled ahead of time lies next to its sources."""
    return sources.folder / f"{sources.name}-{_fingerprint(sources)}.so"


def cache_folder() -> Path:
    """Returns the user's folder of what is made once on a machine: libraries, and the folders of GGUF files."""
    return user_folder("XDG_CACHE_HOME", ".cache")


def user_folder(variable: str, default: str) -> Path:
    """Returns Glimpse's folder in the one that a variable names, else in `default` below the user's home.

    The home of a user who has none, such as a number that no entry of /etc/passwd has, is the root, as in containers.
    """
    try:
        home = Path.home()
    except RuntimeError:
        home = Path("/")
    return Path(os.environ.get(variable) or home / default) / "glimpse"


def _check_machine(sources: Sources) -> None:
    if (machine := (platform.system(), platform.machine())) not in _MACHINES or not sources.files(machine[1]):
        raise BuildError(f"there are no {sources.name} kernels for {' on '.join(machine)}")


def _cached_library(sources: Sources, on_progress: Callable[[str], None]) -> Path:
    compiler = _find_compiler()
    library = cache_folder() / f"{sources.name}-{_fingerprint(sources, _version(compiler))}.so"
    if not library.exists():
        on_progress(f"compiling the {sources.name} kernels (once on this machine)")
        _compile(sources, compiler, library, replaces=False)
    return library


def _package(sources: Sources) -> None:
    built = _cached_library(sources, lambda _stage: None)
    for other in sources.folder.glob(f"{sources.name}-*.so"):
        other.unlink()
    shutil.copy(built, packaged_library(sources))


def _find_compiler() -> str:
    name = os.environ.get("CXX") or "g++"
    compiler = shutil.which(name)
    if compiler is None:
        missing = "no C++ compiler found" if name == "g++" else f"the compiler that CXX names, {name}, is not found"
        raise BuildError(f"{missing}: install g++, or name a compiler in the environment variable CXX")
    return compiler


def _version(compiler: str) -> str:
    return _run([compiler, "--version"])


def _fingerprint(sources: Sources, compiler_version: str = "") -> str:
    digest = hashlib.sha256(compiler_version.encode())
    digest.update(" ".join([platform.system(), platform.machine(), *sources.flags]).encode())
    for file in sorted([*sources.folder.glob("*.cpp"), *sources.folder.glob("*.h")]):
        digest.update(f"\0{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _compile(sources: Sources, compiler: str, library: Path, *, replaces: bool) -> None:
    """Compiles a library, once no other process compiles into its folder; unless `replaces`, only if it is missing."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _locked(library.parent):
            if replaces or not library.exists():
                _remove_left(library.parent)
                with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=library.parent) as folder:
                    _link(sources, compiler, Path(folder)).replace(library)
    except OSError as error:
        raise BuildError(f"the compiled library cannot be written to {library.parent}: {error}") from error


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network's folders can be locked: there, several processes may compile
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _link(sources: Sources, compiler: str, folder: Path) -> Path:
    objects = _compile_each(sources, compiler, folder)
    linked = folder / "linked.so"
    _run([compiler, "-shared", *_flags(sources, compiler).linking, *map(str, objects), "-o", str(linked)])
    return linked


def _remove_left(parent: Path) -> None:
    """Removes the folders of compilers that were killed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process removes it
            if time.time() - folder.stat().st_mtime > _MAX_SECONDS:
                shutil.rmtree(folder)


def _compile_each(sources: Sources, compiler: str, folder: Path) -> list[Path]:
    is_clang = "clang" in _version(compiler)
    flags = _flags(sources, compiler).compiling

    def compile_one(source: Path) -> Path:
        return compile_object(replace(sources, flags=flags), source, folder, compiler=compiler, is_clang=is_clang)

    with ThreadPoolExecutor(num_processors()) as threads:
        return list(threads.map(compile_one, sources.files(platform.machine())))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    compiling: tuple[str, ...]
    linking: tuple[str, ...]


def _flags(sources: Sources, compiler: str) -> _Flags:
    """Returns flags as the compiler knows them. Apple's clang has neither OpenMP's header, which Homebrew's libomp
    brings, nor its library: a second one beside that of torch, which is loaded, would end the process."""
    if "-fopenmp" not in sources.flags or "Apple clang" not in _version(compiler):
        return _Flags(compiling=sources.flags, linking=sources.flags)
    others = tuple(flag for flag in sources.flags if flag != "-fopenmp")
    return _Flags(
        compiling=(*others, "-Xclang", "-fopenmp", "-I/opt/homebrew/opt/libomp/include"),
        linking=(*others, "-Wl,-undefined,dynamic_lookup"),
    )


def compile_object(sources: Sources, source: Path, folder: Path, *, compiler: str, is_clang: bool) -> Path:
    """Compiles one file to an object in the folder and returns its path.

    Raises:
        BuildError: compilation fails.
    """
    compiled = folder / f"{source.stem}.o"
    flags = [*sources.flags, "-iquote", str(sources.folder)]
    if is_clang:
        translated = folder / source.name
        translated.write_text(_for_clang(source), encoding="utf-8")
        source, flags = translated, [*flags, "-Wno-unknown-attributes", "-Wno-unknown-warning-option"]
    _run([compiler, *flags, "-c", str(source), "-o", str(compiled)])
    return compiled


def _for_clang(source: Path) -> str:
    """Returns a file's text with the instruction set of its functions selected in clang's way.

    clang ignores `#pragma GCC target`. Flags such as -mavx2 would also apply to the standard library's inline
    functions, which the linker may then take for processors without these instructions.
    """
    text = source.read_text(encoding="utf-8")
    selected = re.compile(r'^#pragma GCC target\((".*")\)$', re.MULTILINE)
    begin = r"#pragma clang attribute push(__attribute__((target(\1))), apply_to = function)"
    text, count = selected.subn(begin, text)
    return f'#line 1 "{source}"\n{text}' + "\n#pragma clang attribute pop\n" * count


def _run(command: Sequence[str]) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{finished.stderr.strip()[-2000:]}{_hint(finished.stderr)}")
    return finished.stdout


def _hint(errors: str) -> str:
    """Returns what to install, where a compiler's message tells it."""
    for symptom, remedy in _REMEDIES.items():
        if symptom in errors:
            return f"\n{remedy}"
    return ""


_REMEDIES = {
    "omp.h": "clang++ needs the files of OpenMP: install libomp-dev (Homebrew: libomp), or use g++",
    "-lomp": "clang++ needs OpenMP's library: install libomp-dev, or use g++",
    "cc1plus": "the C++ part of gcc is missing: install g++",
    "file not found": "clang++ needs a C++ standard library: install g++, which brings one",
    "target(": "the compiler does not know these instructions: install g++ 11 or newer",
    "-fopenmp": "the compiler knows no OpenMP: install g++",
}
"""What helps, by a part of the compiler's message."""
