"""The check that the protos break no client: what it compares with, and what it finds."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT
from tools.check_breaking import BASELINE, baseline, check


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("api", "third_party"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("gen"))
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@a.example"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def rename_field(folder: Path) -> None:
    proto = folder / "api/glimpse/v1/chat.proto"
    text = proto.read_text()
    assert " metadata = 7;" in text
    proto.write_text(text.replace(" metadata = 7;", " notes = 7;"))


def test_a_renamed_field_breaks_clients_and_a_new_one_does_not(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert baseline(copy) == str(BASELINE), "there is no release"
    proto = copy / "api/glimpse/v1/load.proto"
    proto.write_text(f"{proto.read_text()}\n// A message.\nmessage Another {{}}\n")
    assert check(copy, baseline(copy)) == 0
    rename_field(copy)
    assert check(copy, baseline(copy)) != 0
    assert 'changed name from "metadata" to "notes"' in capfd.readouterr().out


def test_compares_with_the_last_release_once_there_is_one(copy: Path) -> None:
    rename_field(copy)
    git(copy, "init", "--quiet")
    git(copy, "add", ".")
    git(copy, "commit", "--quiet", "--message=first")
    assert baseline(copy) == str(BASELINE)
    git(copy, "tag", "v0.1.0")
    assert baseline(copy).endswith("#tag=v0.1.0,subdir=api")
    assert check(copy, baseline(copy)) == 0, "the release has the new name"
