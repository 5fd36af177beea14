"""The documents say what is so."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT

COMPATIBILITY = (ROOT / "docs/compatibility.md").read_text()
PROOFS: dict[str, list[str]] = tomllib.loads((ROOT / "tests/compatibility.toml").read_text())


@pytest.mark.parametrize("proof", sorted({proof for proofs in PROOFS.values() for proof in proofs}))
def test_every_proof_of_compatibility_exists(proof: str) -> None:
    path, _, test = proof.partition("::")
    sources = [*(ROOT / path).rglob("test_*.py")] if (ROOT / path).is_dir() else [ROOT / path]
    pattern = rf"def {test}\b" if test else r"def test_|class Test|TestCase"
    assert any(re.search(pattern, source.read_text()) for source in sources)


def test_every_behaviour_of_compatibility_has_a_proof() -> None:
    """Rows of the page have ids, and paragraphs titles."""
    behaviours = re.findall(r"^\| ([A-F]\d+[a-z]?) \||^\*\*(.+?)\.\*\*", COMPATIBILITY, re.MULTILINE)
    assert sorted(row or title for row, title in behaviours) == sorted(PROOFS)
    assert [name for name, proofs in PROOFS.items() if not proofs] == []


def test_compatibility_has_every_row_of_the_mission() -> None:
    mission = {"A": 15, "B": 12, "C": 4, "E": 7}
    assert PROOFS.keys() >= {f"{section}{number + 1}" for section, count in mission.items() for number in range(count)}


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("**/README.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if "node_modules" not in page.parts], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Links of docs/ are checked when the site is built."""
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
