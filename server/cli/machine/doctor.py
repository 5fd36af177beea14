"""`glimpse doctor`: its flags. `run_doctor` is what it does."""

from glimpse.server.setting_types import Port


def doctor(*, http_port: Port = 8080, port: Port = 50051, metrics_port: Port = 9090, host: str = "127.0.0.1") -> None:
    """Looks for what is missing or slow on this machine, and says what to do. Exit status 1 if something is missing.

    Parameters
    ----------
    http_port
        Port that the gateway would have.
    port
        Port that gRPC would have.
    metrics_port
        Port that Prometheus' endpoint would have.
    host
        Address that they would listen on.
    """
    from glimpse.server.cli.machine.run_doctor import run_doctor  # noqa: PLC0415 - `--help` looks at nothing

    run_doctor(host, {"--http-port": http_port, "--port": port, "--metrics-port": metrics_port})
