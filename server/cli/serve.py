"""`glimpse up` and `glimpse serve`: their flags. `glimpse.server.cli.run_server` is what they do."""

import gc

from glimpse.gateway.options import PublicOptions
from glimpse.server.cli.flag_forms import DEFAULTS, ServerFlags, check_options, with_model
from glimpse.server.setting_types import Port
from glimpse.server.settings import Settings
from glimpse.usage import UsageError

_GATEWAY = PublicOptions()
_NO_TLS = (
    "'--tls-certificate': expected with `glimpse serve`, got it with `glimpse up`, whose gateway has no TLS; start two "
    "commands instead: `glimpse serve`, and `glimpse gateway run` with --upstream-ca FILE and the same flags for TLS"
)

_NO_STORE = (
    "'--front-ends': expected 1 without --media-store, got {}; several share uploads, quotas and purges in a Redis: "
    "start one, and write `--media-store redis://127.0.0.1:6379`"
)


def up(
    model: str | None = None,
    /,
    *,
    http_port: Port = 8080,
    gateway: PublicOptions = _GATEWAY,
    settings: ServerFlags = DEFAULTS,
) -> None:
    """Serves a model with a gateway in front.

    Parameters
    ----------
    model
        As --model.
    http_port
        Port of the gateway: REST, SSE, grpc-web and gRPC; 0 takes a free one.
    """
    settings = with_model(settings, model)
    try:
        gateway.check_names()
    except ValueError as error:
        raise UsageError(str(error)) from None
    if settings.listen.tls.tls_certificate is not None:
        raise UsageError(_NO_TLS)
    for flag, port in (("--port", settings.listen.port), ("--metrics-port", settings.listen.metrics_port)):
        if http_port == port != 0:
            raise UsageError(f"'--http-port': expected a port of its own, got {port}, which {flag} has")
    if (rank := settings.engine.options.node_rank) > 0:
        raise UsageError(f"'--node-rank': expected 0 with `glimpse up`, got {rank}; other nodes run `glimpse serve`")
    _run(settings, http_port, gateway)


def serve(model: str | None = None, /, *, settings: ServerFlags = DEFAULTS) -> None:
    """Serves a model without a gateway, or computes for another node that serves it.

    Parameters
    ----------
    model
        As --model.
    """
    settings = with_model(settings, model)
    if settings.engine.options.node_rank == 0:
        _run(settings)
        return
    check_options(settings)
    from glimpse.server.cli.run_node import run_node  # noqa: PLC0415 - as below

    run_node(settings)


def _run(settings: Settings, http_port: int | None = None, gateway: PublicOptions = _GATEWAY) -> None:
    check_options(settings)
    if (number := settings.listen.front_ends) > 1 and settings.media.media_store is None:
        raise UsageError(_NO_STORE.format(number))
    gc.disable()  # imports make no garbage, and looking for it is a sixth of their time
    from glimpse.server.cli.run_server import run_server  # noqa: PLC0415 - `--help` and refused flags load no server

    gc.enable()
    run_server(settings, http_port=http_port, gateway=gateway)
