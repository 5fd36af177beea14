"""Flags of `glimpse gateway`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from glimpse.gateway.cli import app, main
from glimpse.gateway.config import GatewayOptions
from glimpse.gateway.options import PublicOptions
from glimpse.gateway.run import Envoy
from tests.gateway.conftest import ANY_PORT

GATEWAY_PEM = Path(__file__).with_name("certificates") / "gateway.pem"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bogus"], "Unknown option: --bogus."),
        (["--listen=8080"], "'--listen': expected an address such as 127.0.0.1:8080, got '8080'"),
        (["--upstream=[::1]"], "'--upstream': expected an address such as 127.0.0.1:8080, got '[::1]'"),
        (
            ["--upstream=http://glimpse:50051"],
            "'--upstream': expected HOST:PORT without a scheme, got 'http://glimpse:50051'",
        ),
        *(
            (["--allow-origin", each], "'--allow-origin': expected an origin such as")
            for each in ("a.example", "https://a/")
        ),
        *((["--allowed-host", each], "'--allowed-host': expected a name such as") for each in ("", "a:1", "http://a")),
        (["--max-heap-bytes=1"], "'--max-heap-bytes': expected at least 67108864, got '1'"),
        (["--max-connections=0"], "'--max-connections': expected at least 1, got '0'"),
        (["--max-heap-bytes=much"], "'--max-heap-bytes': expected a size such as 2GiB, got 'much'"),
        (["--max-connections=many"], "'--max-connections': expected an integer, got 'many'"),
        ([f"--tls-certificate={GATEWAY_PEM}"], "'--tls-certificate' and '--tls-key': expected both or none, got one"),
        ([f"--tls-client-ca={GATEWAY_PEM}"], "'--tls-client-ca': expected together with --tls-certificate"),
        (["--upstream-server-name=glimpse"], "'--upstream-server-name': expected together with --upstream-ca"),
        (["--api-keys=keys"], "'--api-keys': expected with `glimpse serve` or `glimpse up`"),
        (["--jwt-issuer=me"], "'--jwt-issuer': expected together with --jwt-jwks"),
        (["--jwt-tenant-claim=org"], "'--jwt-tenant-claim': expected together with --jwt-jwks"),
        (["--tenant-from-certificate"], "'--tenant-from-certificate': expected together with --tls-client-ca"),
    ],
)
@pytest.mark.parametrize("command", ["run", "config"])
def test_wrong_flags_have_the_server_s_exit_status(
    command: str,
    flags: Sequence[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = [str(tmp_path / "new")] if command == "config" else []
    with pytest.raises(SystemExit) as ended:
        main([command, *folder, *flags])
    output = capsys.readouterr()
    assert (ended.value.code, output.out) == (2, "")
    assert output.err.startswith(f"glimpse gateway: {message}")
    assert not (tmp_path / "new").exists()


def test_several_upstreams_may_have_ipv6_addresses() -> None:
    _, bound, _ = app.parse_args(["run", "--upstream=[::1]:50051", "--upstream=b:1"], exit_on_error=False)
    assert [str(address) for address in bound.arguments["options"].upstream] == ["[::1]:50051", "b:1"]


def test_common_flags_are_the_same_in_both_commands() -> None:
    _, of_run, _ = app.parse_args(["run", "--access-log", "--max-heap-bytes=1GiB"], exit_on_error=False)
    _, of_config, _ = app.parse_args(["config", "/", "--access-log", "--max-heap-bytes=1GiB"], exit_on_error=False)
    assert of_run.arguments["options"] == of_config.arguments["options"]
    options = of_run.arguments["options"]
    assert (options.access_log, options.limits.max_heap_bytes) == (True, 1 << 30)


async def test_connections_are_bounded_by_where_envoy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.gateway.run.max_connections", lambda: 300)
    async with Envoy(GatewayOptions(listen=ANY_PORT), run_dir=tmp_path):
        assert "max_active_downstream_connections: 300\n" in (tmp_path / "envoy.yaml").read_text()
    with pytest.raises(SystemExit):
        app(["config", str(tmp_path)])
    assert "max_active_downstream_connections: 10000\n" in (tmp_path / "envoy.yaml").read_text()


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://localhost:3000", "app://obsidian.md", "file://", "https://[::1]:1"]
)
def test_origins_are_written_as_browsers_send_them(origin: str) -> None:
    PublicOptions(allow_origin=(origin,), allowed_host=("API.example", "[::1]", "10.0.0.1", "my_host")).check_names()
