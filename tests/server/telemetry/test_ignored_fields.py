"""Fields without effect: the header lists them, the log names each once."""

import pytest
from structlog.testing import capture_logs

from glimpse.server.telemetry import ignored_fields
from glimpse.server.telemetry.ignored_fields import IGNORED_FIELDS_HEADER, ignored_fields_header


@pytest.fixture(autouse=True)
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_fields, "_logged", set())


def test_each_name_is_logged_once() -> None:
    with capture_logs() as logs:
        header = ignored_fields_header(["store", "messages[0].mood", "messages[1].mood"])
        ignored_fields_header(["store"])
    assert header == ((IGNORED_FIELDS_HEADER, "store,messages[0].mood,messages[1].mood"),)
    assert [line["field"] for line in logs] == ["store", "messages[].mood"]


def test_clients_cannot_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_fields, "MAX_LOGGED_NAMES", 2)
    with capture_logs() as logs:
        ignored_fields_header(["a", "b", "c"])
    assert [line["field"] for line in logs] == ["a", "b"]
