"""Addresses as gRPC and URLs write them."""


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
