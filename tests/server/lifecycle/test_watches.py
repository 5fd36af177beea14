"""What goes on beside the requests: its failures are seen."""

from pathlib import Path

import pytest

from tests.server.serving import scripted
from tests.waiting import until


async def test_a_watch_that_fails_says_so_and_the_server_goes_on(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("this watch is broken")

    monkeypatch.setattr("glimpse.server.lifecycle.build_server.return_memory", fail)
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _):
        await server.ready()
        await until(lambda: "this watch is broken" in caplog.text)
    assert "a watch of the server failed" in caplog.text
