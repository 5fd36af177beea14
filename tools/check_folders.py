"""Fails where a folder of the product has grown too large to survey.

A folder has one subject and at most 15 modules beside its sub-folders. What does not fit moves into its own folder.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = {"engine", "media", "server", "gateway", "dialect", "native", "src", "models", "bench", "tools"}
MAX_MODULES = 15


def main() -> None:
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = [PurePath(name) for name in names.splitlines() if not name.endswith("__init__.py")]
    sizes = Counter(str(module.parent) for module in modules if module.parts[0] in PRODUCT)
    large = [
        f"{folder}/ has {size} modules, more than {MAX_MODULES}" for folder, size in sizes.items() if size > MAX_MODULES
    ]
    if large:
        sys.exit("\n".join(sorted(large)))


if __name__ == "__main__":
    main()
