"""A client of Envoy's admin interface on a Unix socket."""

import http.client
import json
import socket
from pathlib import Path

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


def num_active_requests(path: Path, stat_prefix: str) -> int:
    """Returns the number of running requests."""
    stats = json.loads(_request(path, "GET", f"/stats?format=json&filter=^http.{stat_prefix}.downstream_rq_active$"))
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
