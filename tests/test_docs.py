"""The documents say what is so."""

import re
from pathlib import Path

import pytest

from tests.paths import ROOT

REFERENCES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/compatibility.md").read_text())))


@pytest.mark.parametrize(("path", "test"), REFERENCES)
def test_every_proof_that_compatibility_names_exists(path: str, test: str) -> None:
    assert re.search(rf"def {test}\b" if test else r"def test_|TestCase", (ROOT / path).read_text())


def test_compatibility_has_every_row_of_the_mission() -> None:
    rows = set(re.findall(r"^\| ([A-E]\d+) \|", (ROOT / "docs/compatibility.md").read_text(), re.MULTILINE))
    mission = {"A": 15, "B": 12, "C": 4, "E": 7}
    assert rows >= {f"{section}{number + 1}" for section, count in mission.items() for number in range(count)}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("**/README.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if "node_modules" not in page.parts], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Those of docs/ are checked when the site is built."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert links or page.parent.name in {"node", "typescript", "go", "java", "cpp", "curl"}
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_example_has_a_readme_in_the_overview() -> None:
    overview = (ROOT / "examples" / "README.md").read_text()
    folders = [path for path in (ROOT / "examples").iterdir() if path.is_dir()]
    assert [path.name for path in folders if f"({path.name}/README.md)" not in overview] == []
    assert [path.name for path in folders if not (path / "README.md").exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
