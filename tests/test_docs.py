"""The documents say what is so."""

import re

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


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
