"""Runs one target under atheris: `python -m tests.fuzz.process TARGET SEEDS OPTION …`; see `tests.fuzz`.

SEEDS is a folder to create. OPTION is an option of libFuzzer or a corpus folder. atheris exits the process itself: with
status 0 after its runs or its time, and with another status if the target failed.
"""

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import atheris

_TENSORS = ("tensor", "pickle")

_uses_torch = sys.argv[1] in _TENSORS
with atheris.instrument_imports(include=["glimpse", "PIL", "yarl"]):  # pyright: ignore[reportAttributeAccessIssue] - it exists
    import PIL.Image

    _targets: Any = import_module("tests.fuzz.tensors" if _uses_torch else "tests.fuzz.targets")

    PIL.Image.init()  # imports all formats now instead of at their first use
_seeds: Any = _targets if _uses_torch else import_module("tests.fuzz.seeds")


def main() -> None:
    target, seeds, *options = sys.argv[1:]
    Path(seeds).mkdir()
    for index, seed in enumerate(_seeds.seeds_of(target)):
        Path(seeds, str(index)).write_bytes(seed)
    if _uses_torch:
        warnings.simplefilter("ignore")  # torch warns about unusual pickles
        # Only this part of torch: instrumenting all of it takes minutes.
        unpickler: Any = import_module("torch._weights_only_unpickler").Unpickler
        instrumented: Any = atheris.instrument_func(unpickler.load)  # pyright: ignore[reportAttributeAccessIssue] - the same
        unpickler.load = instrumented
        limits: Any = import_module("glimpse.media.workers.rlimits")
        limits.limit_memory(
            limits.memory_in_use() + import_module("glimpse.media.embeddings.torch_files").LIMITS.memory_bytes
        )
    atheris.Setup([sys.argv[0], *options, seeds], _targets.TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
