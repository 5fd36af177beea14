"""A client of Envoy's admin interface on a Unix socket."""

import http.client
import json
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

_TIMEOUT_SECONDS = 5.0


class AdminError(Exception):
    """Envoy did not answer, or answered with an error."""


def is_ready(path: Path) -> bool:
    """Whether Envoy has its configuration and accepts connections."""
    try:
        return _request(path, "GET", "/ready").strip() == b"LIVE"
    except AdminError:
        return False


def listening_port(path: Path) -> int:
    """Returns the TCP port of the only listener that has one; others are inside Envoy."""
    listeners = json.loads(_request(path, "GET", "/listeners?format=json"))["listener_statuses"]
    addresses = (listener["local_address"] for listener in listeners)
    return next(address["socket_address"]["port_value"] for address in addresses if "socket_address" in address)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What Envoy knows of a server of a cluster."""

    address: str
    """HOST:PORT."""
    is_healthy: bool
    num_requests: int
    """Requests that it got so far, of this cluster."""


def servers(path: Path, cluster: str) -> list[ServerStatus]:
    clusters = json.loads(_request(path, "GET", "/clusters?format=json"))["cluster_statuses"]
    hosts = next((each.get("host_statuses", []) for each in clusters if each["name"] == cluster), [])
    return [_server(host) for host in hosts]


def _server(host: dict[str, Any]) -> ServerStatus:
    address = host["address"]["socket_address"]
    # Counts of 0 have no value.
    counts = {stat["name"]: int(stat.get("value", 0)) for stat in host.get("stats", [])}
    return ServerStatus(
        address=f"{address['address']}:{address['port_value']}",
        is_healthy=not host["health_status"].get("failed_active_health_check", False),
        num_requests=counts.get("rq_total", 0),
    )


def num_active_requests(path: Path, stat_prefix: str) -> int:
    """Returns the number of running requests."""
    return total(path, [f"http.{stat_prefix}.downstream_rq_active"])


def total(path: Path, names: Iterable[str]) -> int:
    """Returns the sum of counters and gauges, which are given by their full names."""
    pattern = "|".join(f"^{re.escape(name)}$" for name in names)
    stats = json.loads(_request(path, "GET", f"/stats?format=json&filter={quote(pattern)}"))
    return sum(stat["value"] for stat in stats["stats"])


def begin_drain(path: Path) -> None:
    """Fails health checks and asks clients to leave: `connection: close` on HTTP/1.1 responses, GOAWAY on HTTP/2."""
    _request(path, "POST", "/healthcheck/fail")
    _request(path, "POST", "/drain_listeners?graceful")


def _request(path: Path, method: str, target: str) -> bytes:
    connection = http.client.HTTPConnection("localhost")
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(_TIMEOUT_SECONDS)
        connection.sock.connect(str(path))
        connection.request(method, target)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise AdminError(f"no answer on {path}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise AdminError(f"{method} {target}: {response.status}")
    return body
