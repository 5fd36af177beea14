"""Addresses as gRPC and URLs write them, and ports that are taken."""

import socket

_HOSTS = {"--port": "--host", "--metrics-port": "--metrics-host", "--http-port": "--host"}
"""The flag that says where a port is, by the flag of the port."""


def local_host(host: str) -> str:
    """Returns the address at which this machine reaches a server that listens on `host`."""
    match host:
        case "0.0.0.0":  # noqa: S104 - compared, not bound
            return "127.0.0.1"
        case "::":
            return "::1"
        case _:
            return host


def address(host: str, port: int) -> str:
    """Returns HOST:PORT, as gRPC and URLs write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PortError(Exception):
    """The server cannot listen on a port."""

    def __init__(self, host: str, port: int, flag: str) -> None:
        why = f"the port is taken or not permitted; choose another with {flag}"
        if not _is_of_this_machine(host):
            why = f"expected an address of this machine, or its name, got {host!r}; choose another with {_HOSTS[flag]}"
        super().__init__(f"cannot listen on {address(host, port)}: {why}")


def _is_of_this_machine(host: str) -> bool:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(where)
    except (OSError, UnicodeError):
        return False
    return True
