"""Fails tests whose server held its event loop for too long, during which no other client was served."""

import os
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent
_REPORT = "event loop held for "


def watched(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a server that reports such work in its output."""
    path = os.pathsep.join(filter(None, (str(_FOLDER), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path}


def check(log: Path) -> None:
    """Fails if there are reports in a server's output."""
    reports = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(_REPORT)]
    assert not reports, "\n".join(reports)
