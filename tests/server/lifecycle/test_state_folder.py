"""What is told of a state folder that cannot be used."""

from pathlib import Path

import pytest

from glimpse.media.shared.disk import DiskStore
from glimpse.server.lifecycle.build_media import state_folder_errors
from glimpse.usage import UsageError


@pytest.mark.parametrize(
    ("below", "reason"), [(".", "unable to open database file"), ("files.sqlite/file/x", "Not a directory")]
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, below: str, reason: str) -> None:
    (tmp_path / "files.sqlite").mkdir()
    (tmp_path / "files.sqlite" / "file").touch()
    folder = tmp_path / below
    with pytest.raises(UsageError) as caught, state_folder_errors(folder):
        DiskStore(folder, budgets={})
    assert str(caught.value) == (
        f"'--state-folder': expected a folder whose files this user can write, got '{folder}': {reason}; "
        "change its owner or mode, take a damaged file away, or name another folder"
    )
