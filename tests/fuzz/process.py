"""One target under atheris: `python -m tests.fuzz.process TARGET SECONDS CRASHES KEPT SEEDS`; see `tests.fuzz`.

atheris ends the process itself: with status 0 when the time is over, and with another where the target failed.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["media", "PIL", "yarl"]):  # pyright: ignore[reportAttributeAccessIssue] - it is
    import PIL.Image

    from tests.fuzz.targets import MAX_INPUT_BYTES, TARGETS

    PIL.Image.init()  # all of its formats, which are else imported when one comes
from tests.fuzz.seeds import seeds_of


def main() -> None:
    target, seconds, crashes, kept, seeds = sys.argv[1:]
    Path(seeds).mkdir()
    for index, seed in enumerate(seeds_of(target)):
        Path(seeds, str(index)).write_bytes(seed)
    options = (
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-artifact_prefix={crashes}",
        "-timeout=30",
        "-rss_limit_mb=3072",
        "-verbosity=0",
        "-print_final_stats=1",
    )
    atheris.Setup([sys.argv[0], *options, kept, seeds], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
