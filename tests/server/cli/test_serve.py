"""Flags of `glimpse up` that are the gateway's."""

from collections.abc import Sequence

import pytest

from glimpse.gateway.cli import main as gateway_cli
from glimpse.server.cli import serve
from glimpse.server.cli.app import app
from glimpse.server.settings import Settings


def test_collector_of_traces_reaches_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []

    def run(_settings: Settings, _http_port: int | None, flags: Sequence[str]) -> None:
        passed.extend(flags)

    monkeypatch.setattr(serve, "_run", run)
    command, bound, _ = app.parse_args(["up", "--otlp-endpoint=collector:4317"], exit_on_error=False, print_error=False)
    command(*bound.args, **bound.kwargs)
    _, bound, _ = gateway_cli.app.parse_args(["run", *passed], exit_on_error=False)
    assert str(bound.arguments["flags"].otlp_endpoint) == "collector:4317"
