"""`glimpse up` and `glimpse serve`: their flags. `glimpse.server.cli.run_server` is what they do."""

import os
from collections.abc import Iterator, Sequence
from typing import Annotated

from cyclopts import Parameter
from pydantic import ValidationError

from glimpse.engine.protocol.option_values import explain
from glimpse.server.cli.usage import UsageError
from glimpse.server.setting_types import Names, Port
from glimpse.server.settings import AccessSettings, NameSettings, Settings

NO_PAGE = "--no-page"
"""The flag of `glimpse gateway run` that turns the page off."""

_Flags = Annotated[Settings, Parameter(name="*")]
_DEFAULTS = Settings()
_NO_TLS = (
    "'--tls-certificate': expected with `glimpse serve`, got it with `glimpse up`, whose gateway has no TLS; start two "
    "commands instead: `glimpse serve`, and `glimpse gateway run` with --upstream-ca FILE and the same flags for TLS"
)


def up(
    model: str | None = None,
    /,
    *,
    http_port: Port = 8080,
    allow_origin: Names = (),
    allowed_host: Names = (),
    access_log: Annotated[bool, Parameter(negative="")] = False,
    otlp_endpoint: str | None = None,
    connect: Annotated[bool, Parameter(negative="")] = False,
    page: bool = True,
    settings: _Flags = _DEFAULTS,
) -> None:
    """Serves a model with a gateway in front.

    Parameters
    ----------
    model
        As --model.
    http_port
        Port of the gateway: REST, SSE, grpc-web and gRPC; 0 takes a free one.
    allow_origin
        Origin of web pages that may call, such as https://app.example; "*" allows all. Default: pages of this machine
        and, where --host is a loopback address, applications with a web view and extensions of browsers.
    allowed_host
        Host name under which the gateway answers, in addition to localhost; repeatable. Default: no other where --host
        is a loopback address, any elsewhere.
    access_log
        The gateway writes a line for each request to standard output.
    otlp_endpoint
        HOST:PORT of a collector to which the gateway sends its spans as OTLP over gRPC, without TLS. Default: none.
    connect
        The gateway speaks Connect's protocol too. Experimental: Envoy calls its own filter for it work in progress.
    page
        Serve a page for people at / and the API reference at /docs, on the gateway's port.
    """
    settings = _with_model(settings, model)
    if settings.listen.tls_certificate is not None:
        raise UsageError(_NO_TLS)
    for flag, port in (("--port", settings.listen.port), ("--metrics-port", settings.listen.metrics_port)):
        if http_port == port != 0:
            raise UsageError(f"'--http-port': expected a port of its own, got {port}, which {flag} has")
    if (rank := settings.engine.options.node_rank) > 0:
        raise UsageError(f"'--node-rank': expected 0 with `glimpse up`, got {rank}; other nodes run `glimpse serve`")
    flags = (*(f"--allow-origin={name}" for name in allow_origin), *(f"--allowed-host={name}" for name in allowed_host))
    flags = (*flags, *_authentication_flags(settings.access))
    switches = (("--access-log", access_log), ("--connect", connect), (NO_PAGE, not page))
    flags = (*flags, *(flag for flag, is_given in switches if is_given))
    if otlp_endpoint is not None:
        flags = (*flags, f"--otlp-endpoint={otlp_endpoint}")
    _run(settings, http_port, flags)


def serve(model: str | None = None, /, *, settings: _Flags = _DEFAULTS) -> None:
    """Serves a model without a gateway, or computes for another node that serves it.

    Parameters
    ----------
    model
        As --model.
    """
    settings = _with_model(settings, model)
    if settings.engine.options.node_rank == 0:
        _run(settings, None)
        return
    _check_nodes(settings)
    from glimpse.server.cli.run_node import run_node  # noqa: PLC0415 - as below

    run_node(settings)


def _authentication_flags(access: AccessSettings) -> Iterator[str]:
    """Yields the flags with which the gateway checks JWTs too, where nothing else is a credential."""
    if access.api_keys is not None:
        return
    for name in ("jwt_jwks", "jwt_jwks_ca", "jwt_issuer", "jwt_audience", "jwt_tenant_claim"):
        if (value := getattr(access, name)) is not None:
            yield f"--{name.replace('_', '-')}={value}"


def _with_model(settings: Settings, model: str | None) -> Settings:
    """Returns settings with the model that was named without a flag, which comes before GLIMPSE_MODEL."""
    if model is None:
        return settings
    if settings.engine.model not in (None, model, os.environ.get("GLIMPSE_MODEL")):
        raise UsageError(f"'MODEL': expected once, got {model!r} and --model {settings.engine.model}")
    try:
        named = NameSettings(model=model).model
    except ValidationError as error:
        raise UsageError(f"'MODEL': {explain(error.errors()[0])}") from None
    engine = settings.engine.model_copy(update={"model": named})
    return settings.model_copy(update={"engine": engine})


def _check_nodes(settings: Settings) -> None:
    if (why_not := settings.engine.options.why_not_nodes) is not None:
        raise UsageError(why_not)


def _run(settings: Settings, http_port: int | None, gateway_flags: Sequence[str] = ()) -> None:
    _check_nodes(settings)
    from glimpse.server.cli.run_server import run_server  # noqa: PLC0415 - `--help` and refused flags load no server

    run_server(settings, http_port=http_port, gateway_flags=gateway_flags)
