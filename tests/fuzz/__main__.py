"""Fuzzes what reads strangers' bytes: `python -m tests.fuzz [--seconds N] [--corpus FOLDER] [TARGET …]`.

Each target has a process of its own, for its share of the seconds. It begins with `tests.fuzz.seeds` and, where a
folder is given, with what earlier runs kept in FOLDER/TARGET; new finds are kept there. What makes a target fail is
written to FOLDER/crash-…, or to the current folder, and the exit status is 1. Coverage guides it through the Python of
`media` and of Pillow, and not through the C of decoders, which is tried all the same.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import TARGETS

_PROCESS = (sys.executable, "-m", "tests.fuzz.process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--corpus", type=Path, help="a folder that keeps what was found")
    options = parser.parse_args()
    targets = options.targets or list(TARGETS)
    if unknown := set(targets) - TARGETS.keys():
        parser.error(f"no such target: {', '.join(unknown)}")
    seconds = max(1, options.seconds // len(targets))
    failed = [target for target in targets if not _fuzz(target, seconds, options.corpus)]
    if failed:
        sys.exit(f"fuzzing found faults in: {', '.join(failed)}")


def _fuzz(target: str, seconds: int, corpus: Path | None) -> bool:
    """Whether the target withstood."""
    print(f"fuzzing {target} for {seconds} s", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(temporary, "kept") if corpus is None else corpus / target
        kept.mkdir(parents=True, exist_ok=True)
        crashes = f"{corpus or Path.cwd()}/crash-{target}-"
        command = [*_PROCESS, target, str(seconds), crashes, str(kept), f"{temporary}/seeds"]
        return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    main()
