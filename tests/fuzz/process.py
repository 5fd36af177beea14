"""One target under atheris: `python -m tests.fuzz.process TARGET SEEDS OPTION …`; see `tests.fuzz`.

SEEDS is a folder to be made; the options are libFuzzer's, and the folders of what is kept. atheris ends the process
itself: with status 0 when its runs are done or its time is over, and with another where the target failed.
"""

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import atheris

_TENSORS = ("tensor", "pickle")

_is_of_tensors = sys.argv[1] in _TENSORS
with atheris.instrument_imports(include=["glimpse", "PIL", "yarl"]):  # pyright: ignore[reportAttributeAccessIssue] - it is
    import PIL.Image

    _targets: Any = import_module("tests.fuzz.tensors" if _is_of_tensors else "tests.fuzz.targets")

    PIL.Image.init()  # all of its formats, which are else imported when one comes
_seeds: Any = _targets if _is_of_tensors else import_module("tests.fuzz.seeds")


def main() -> None:
    target, seeds, *options = sys.argv[1:]
    Path(seeds).mkdir()
    for index, seed in enumerate(_seeds.seeds_of(target)):
        Path(seeds, str(index)).write_bytes(seed)
    if _is_of_tensors:
        warnings.simplefilter("ignore")  # torch's, of pickles that are not as it writes them
        # Of torch this alone: to instrument all of it takes minutes.
        unpickler: Any = import_module("torch._weights_only_unpickler").Unpickler
        instrumented: Any = atheris.instrument_func(unpickler.load)  # pyright: ignore[reportAttributeAccessIssue] - the same
        unpickler.load = instrumented
        limits: Any = import_module("glimpse.media.decoding.rlimits")
        limits.limit_memory(
            limits.memory_in_use() + import_module("glimpse.media.embeddings.torch_files").LIMITS.memory_bytes
        )
    atheris.Setup([sys.argv[0], *options, seeds], _targets.TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
