"""Deadlines of calls: the server ends a response while there is time to send its end."""

import asyncio

import pytest

from glimpse.server.rpc.context import deadline


@pytest.mark.parametrize(
    ("remaining", "grace", "expected"),
    [(2.0, None, 1.9), (100.0, None, 99.5), (5.0, "3", 2.0), (2.0, "soon", 1.9), (None, "3", None)],
)
async def test_the_server_s_deadline_comes_before_the_client_s(
    remaining: float | None, grace: str | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
    assert deadline(remaining, grace) == expected
