"""llama.cpp's server as a peer. README.md says how to build it and how to convert a checkpoint."""

from pathlib import Path

from bench.serving.targets import Target, free_ports

_NUM_SLOTS = 16
"""Requests at a time: as many as the largest case has."""
_SLOT_TOKENS = 6144
"""Context of each, which holds the longest prompt and its answer."""


def llama_cpp(binaries: Path, files: Path, weights: str, *, num_threads: int) -> Target:
    """`llama-server` on a free port.

    Args:
        binaries: folder with llama-server.
        files: folder with one GGUF file whose name ends in -WEIGHTS.gguf and one whose name contains mmproj.
        weights: type of the weights, as in the file's name, such as BF16 or Q8_0.
        num_threads: compute threads.

    Raises:
        ValueError: a file is missing or there are several.
    """
    server = binaries / "llama-server"
    if not server.exists():
        raise ValueError(f"--llama-cpp: expected llama-server in {binaries}")
    (port,) = free_ports(1)
    options = {
        "model": _only_file(files, f"*-{weights}.gguf"),
        "mmproj": _only_file(files, "*mmproj*.gguf"),
        "host": "127.0.0.1",
        "port": port,
        "threads": num_threads,
        "parallel": _NUM_SLOTS,
        "ctx-size": _NUM_SLOTS * _SLOT_TOKENS,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return Target(
        name=f"llama.cpp {weights}", url=f"http://127.0.0.1:{port}/v1", command=(str(server), *words, "--no-ui")
    )


def _only_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ValueError(f"--llama-cpp: expected one file {pattern} in {folder}, got {len(found)}")
    return found[0]
