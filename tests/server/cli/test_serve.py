"""Flags of `glimpse up` that are the gateway's."""

import pytest
from pydantic import TypeAdapter

from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.options import GatewayLimits, PublicOptions
from glimpse.server.cli import serve
from glimpse.server.cli.app import app
from glimpse.server.settings import Settings
from glimpse.usage import UsageError


def test_collector_of_traces_reaches_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[PublicOptions] = []

    def run(_settings: Settings, _http_port: int | None, flags: PublicOptions) -> None:
        passed.append(flags)

    monkeypatch.setattr(serve, "_run", run)
    command, bound, _ = app.parse_args(["up", "--otlp-endpoint=collector:4317"], exit_on_error=False, print_error=False)
    command(*bound.args, **bound.kwargs)
    text = TypeAdapter(PublicOptions).dump_json(*passed).decode()
    options = GatewayOptions(access_log=True, limits=GatewayLimits(max_heap_bytes=1 << 30)).with_public(text)
    assert (str(options.otlp_endpoint), options.access_log) == ("collector:4317", False)
    assert options.limits.max_heap_bytes == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--nnodes=2", "--node-rank=1"], "'--node-rank': expected 0 with `glimpse up`, got 1"),
        (
            ["up", "--allowed-host=a.example:8080"],
            "'--allowed-host': expected a name such as api.example, without a port",
        ),
        (["serve", "--node-rank=1"], "'--node-rank': expected less than --nnodes 1, got 1"),
        (["serve", "--nnodes=2"], "'--master-addr': expected the address of node 0 with --nnodes 2, got none"),
        (["up", "--front-ends=4"], "'--front-ends': expected 1 without --media-store, got 4"),
    ],
)
def test_refuses_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    with pytest.raises(UsageError, match=message):
        command(*bound.args, **bound.kwargs)
