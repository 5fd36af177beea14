"""`glimpse up` and `glimpse serve`: their flags. `glimpse.server.cli.run_server` is what they do."""

from typing import Annotated

from cyclopts import Parameter

from glimpse.server.settings import Port, Settings

_Flags = Annotated[Settings, Parameter(name="*")]
_DEFAULTS = Settings()


def up(*, http_port: Port = 8080, settings: _Flags = _DEFAULTS) -> None:
    """Serves a model with a gateway in front.

    Parameters
    ----------
    http_port
        Port of the gateway: REST, SSE, grpc-web and gRPC.
    """
    _run(settings, http_port)


def serve(*, settings: _Flags = _DEFAULTS) -> None:
    """Serves a model without a gateway."""
    _run(settings, None)


def _run(settings: Settings, http_port: int | None) -> None:
    from glimpse.server.cli.run_server import run_server  # noqa: PLC0415 - `--help` and refused flags load no server

    run_server(settings, http_port=http_port)
