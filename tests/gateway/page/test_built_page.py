"""The built page is what its sources give."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.node import NODE
from tests.paths import ROOT

PAGE = ROOT / "gateway" / "page"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with the packages that they are built with."""
    if not (PAGE / "node_modules").exists():
        pytest.skip("the page's packages are not installed; run `make set-up-dev`, or `npm ci` in gateway/page")
    copy = tmp_path_factory.mktemp("page")
    shutil.copytree(PAGE / "src", copy / "src")
    for name in ("build.mjs", "package.json", "tsconfig.json"):
        shutil.copy(PAGE / name, copy)
    (copy / "node_modules").symlink_to(PAGE / "node_modules")
    return copy


def test_building_again_gives_the_same_files(sources: Path) -> None:
    subprocess.run([NODE, "build.mjs"], cwd=sources, check=True, timeout=120)
    assert contents(sources / "dist") == contents(PAGE / "dist"), "run `npm run build` in gateway/page"


def test_types_are_right(sources: Path) -> None:
    done = subprocess.run(
        [NODE, "node_modules/typescript/bin/tsc"], cwd=sources, check=False, timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
