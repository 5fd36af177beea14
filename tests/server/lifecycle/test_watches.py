"""What goes on beside the requests: its failures are seen."""

import asyncio
from pathlib import Path

import pytest

from tests.server.serving import scripted


async def test_a_watch_that_fails_says_so_and_the_server_goes_on(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("this watch is broken")

    monkeypatch.setattr("glimpse.server.lifecycle.build_server.return_memory", fail)
    async with scripted(tiny_checkpoint, tmp_path, "ready") as (server, _), asyncio.timeout(60):
        await server.ready()
        while "this watch is broken" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "a watch of the server failed" in caplog.text
