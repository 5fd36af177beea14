"""Writes what the image installs: torch.txt and requirements.txt in a folder, from pyproject.toml and constraints.txt.

These are files of their own so that a change of pyproject.toml that adds no dependency reinstalls nothing. Run by the
Dockerfile before anything is installed, so it uses the standard library only.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    torch = next(line for line in constraints if line.startswith("torch=="))
    others = [each for each in project["dependencies"] if not each.startswith("torch>=")]
    if len(others) != len(project["dependencies"]) - 1:
        sys.exit("pyproject.toml: expected one dependency 'torch>=…'")
    (folder / "torch.txt").write_text(f"{torch}\n")
    (folder / "requirements.txt").write_text("\n".join([*others, torch]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
