"""Addresses as gRPC and URLs write them, and ports that are taken."""


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
        where = address(host, port)
        super().__init__(f"cannot listen on {where}: the port is taken or not permitted; choose another with {flag}")
