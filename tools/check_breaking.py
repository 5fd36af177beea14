"""Compares the protos with the API that clients may rely on: that of the last release.

Before the first release that is `api/baseline.binpb`, an image of the API that was agreed on. `--agree` replaces it,
for a change that breaks clients on purpose; CHANGELOG.md says so then.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = Path("api/baseline.binpb")
BUF = Path(sys.executable).with_name("buf")


def baseline(root: Path) -> str:
    """Returns what buf compares with: the API of the last tag of a release, else the baseline."""
    tag = _git(root, "describe", "--tags", "--abbrev=0", "--match=v[0-9]*")
    folder = _git(root, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return f"{folder}#tag={tag},subdir=api" if tag and folder else str(BASELINE)


def check(root: Path, against: str) -> int:
    """Prints what breaks clients. Returns the exit status of buf."""
    return subprocess.run([str(BUF), "breaking", "api", "--against", against], cwd=root, check=False).returncode


def agree(root: Path) -> int:
    """Makes the protos the baseline."""
    command = [str(BUF), "build", "api", "--exclude-source-info", "--output", str(BASELINE)]
    return subprocess.run(command, cwd=root, check=False).returncode


def _git(root: Path, *arguments: str) -> str:
    """Returns what git prints; nothing if it fails, as without a tag or a repository."""
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(agree(ROOT) if sys.argv[1:] == ["--agree"] else check(ROOT, baseline(ROOT)))
