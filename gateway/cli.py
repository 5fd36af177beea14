"""The command `glimpse gateway`: run Envoy, write its configuration for an Envoy elsewhere, check a server's health."""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter, Token
from cyclopts.config import Env
from cyclopts.validators import Number
from pydantic import ByteSize, TypeAdapter

from glimpse.gateway.address import Address
from glimpse.gateway.authentication.filters import Authentication, parse_authentication
from glimpse.gateway.authentication.tokens import Tokens, parse_tokens
from glimpse.gateway.config import DEFAULT_LIMITS, GatewayOptions, Limits, write_config
from glimpse.gateway.health import is_serving
from glimpse.gateway.run import LIMITS_HERE, Envoy, GatewayError
from glimpse.gateway.telemetry import Telemetry
from glimpse.gateway.tls import NO_UPSTREAM_TLS, Tls, UpstreamTls, parse_tls

_MIN_HEAP_BYTES = 64 << 20
"""Envoy itself needs about half of it."""


def _human_readable(size: int) -> str:
    return ByteSize(size).human_readable()


def _address(_: type[Address], tokens: list[Token]) -> Address:
    return Address.parse(tokens[0].value)


def _addresses(_: type[tuple[Address, ...]], tokens: list[Token]) -> tuple[Address, ...]:
    return tuple(Address.parse(token.value) for token in tokens)


def _bytes(_: type[int], tokens: list[Token]) -> int:
    return TypeAdapter(ByteSize).validate_python(tokens[0].value)


_AddressFlag = Annotated[Address, Parameter(converter=_address, n_tokens=1, accepts_keys=False)]
_Addresses = Annotated[
    tuple[Address, ...], Parameter(converter=_addresses, n_tokens=1, accepts_keys=False, negative="")
]
_Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
_Size = Annotated[int, Parameter(converter=_bytes, validator=Number(gte=_MIN_HEAP_BYTES), show_default=_human_readable)]
_Seconds = Annotated[int, Parameter(validator=Number(gte=0))]
_Count = Annotated[int, Parameter(validator=Number(gte=1))]

_LISTEN = Address(host="127.0.0.1", port=8080)
_UPSTREAM = Address(host="127.0.0.1", port=50051)
_ADMIN = Address(host="127.0.0.1", port=9901)
# One worker handles tens of thousands of events per second; the other cores are for the model.
_WORKERS = max(1, (os.cpu_count() or 1) // 4)

_PARENT_POLL_SECONDS = 0.5

app = App(
    name="glimpse gateway",
    help="Envoy in front of Glimpse's gRPC server: OpenAI's REST and SSE, grpc-web and gRPC on one port.",
    version_flags=[],
    config=Env("GLIMPSE_GATEWAY_", command=False),
)


def main() -> None:
    """Runs the command that this process's arguments name."""
    try:
        status = app()
    except GatewayError as error:
        sys.exit(f"glimpse gateway: {error}")
    sys.exit(status)


@app.command
def run(
    *,
    listen: _AddressFlag = _LISTEN,
    upstream: _Addresses = (_UPSTREAM,),
    route_by_key: bool | None = None,
    allow_origin: _Names = (),
    allowed_host: _Names = (),
    access_log: bool = False,
    metrics_upstream: _AddressFlag | None = None,
    otlp_endpoint: _AddressFlag | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    api_keys: Path | None = None,
    jwt_jwks: str | None = None,
    jwt_issuer: str | None = None,
    jwt_audience: str | None = None,
    jwt_tenant_claim: str = "sub",
    tenant_from_certificate: Annotated[bool, Parameter(negative="")] = False,
    upstream_tls: UpstreamTls = NO_UPSTREAM_TLS,
    max_connections: _Count = LIMITS_HERE.max_connections,
    max_heap_bytes: _Size = DEFAULT_LIMITS.max_heap_bytes,
    drain_seconds: _Seconds = 30,
    workers: _Count = _WORKERS,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    run_dir: Path | None = None,
    end_with_parent: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run Envoy in the foreground. SIGTERM or Ctrl-C drains and stops it; a second one stops it at once.

    Parameters
    ----------
    listen
        Address for clients. Port 0 takes a free one.
    upstream
        A server's gRPC address; a name may resolve to several. Repeat the flag for more.
    route_by_key
        Send requests with the same prompt_cache_key, or the same beginning of a conversation, to the same server.
        Default: where there may be several, that is, with several addresses or a name.
    allow_origin
        Origin of web pages that may call, such as https://app.example; "*" allows all. Default: pages of this machine.
    allowed_host
        Host name under which the gateway answers, in addition to localhost. Default: no other on a loopback address,
        against web pages whose names resolve to it; any on other addresses.
    access_log
        Write a line for each request to standard output.
    metrics_upstream
        The server's Prometheus endpoint, to be served as /metrics. For a gateway with a single server. Default: none.
    otlp_endpoint
        Collector that takes spans as OTLP over gRPC, without TLS. Default: the gateway has no spans.
    tls_certificate
        PEM file of the gateway's certificate. Turns TLS on. Default: plain text.
    tls_key
        PEM file of the certificate's private key.
    tls_client_ca
        PEM file of the CA that signs client certificates, which are then required (mutual TLS).
    api_keys
        File with the hashes of API keys and their tenants, as the server's. It is read again when it changes. Requests
        then need a credential, except for health.
    jwt_jwks
        File or URL with the public keys (JWKS) of an identity provider, whose JWTs are then credentials too. A URL is
        fetched again every 5 minutes, a file is read at the start.
    jwt_issuer
        Issuer (`iss`) of valid JWTs.
    jwt_audience
        Audience (`aud`) of valid JWTs.
    jwt_tenant_claim
        Claim of JWTs that names the tenant.
    tenant_from_certificate
        The tenant of a request is the first URI, else the first DNS name, of the client's certificate.
    max_connections
        Most connections of clients. Further ones are closed at once.
    max_heap_bytes
        Envoy's memory, such as 2GiB. Near it, requests are refused with 503.
    drain_seconds
        How long a stop waits for running requests.
    workers
        Envoy's worker threads.
    log_level
        Level of Envoy's log.
    run_dir
        Folder for the configuration, the admin socket and Envoy's log. Default: a temporary one.
    end_with_parent
        Stop, as on SIGTERM, when the parent process exits.
    """
    tls = _tls(tls_certificate, tls_key, tls_client_ca)
    tokens = _tokens(jwt_jwks, jwt_issuer, jwt_audience, jwt_tenant_claim)
    authentication = _authentication(api_keys, tokens, by_certificate=tenant_from_certificate, tls=tls)
    with tempfile.TemporaryDirectory(prefix="glimpse-gateway-") as temporary:
        folder = run_dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        envoy = Envoy(
            GatewayOptions(
                listen=listen,
                upstream=upstream,
                allowed_origins=allow_origin,
                allowed_hosts=allowed_host,
                access_log=access_log,
                tls=tls,
                authentication=authentication,
                upstream_tls=_checked(upstream_tls),
                limits=Limits(max_connections=max_connections, max_heap_bytes=max_heap_bytes),
                by_key=route_by_key,
                telemetry=Telemetry(metrics=metrics_upstream, otlp=otlp_endpoint),
            ),
            run_dir=folder,
            drain_seconds=drain_seconds,
            num_workers=workers,
            log_level=log_level,
        )
        return asyncio.run(_serve(envoy, end_with_parent=end_with_parent))


@app.command
def config(
    folder: Path,
    *,
    listen: _AddressFlag = _LISTEN,
    upstream: _Addresses = (_UPSTREAM,),
    route_by_key: bool | None = None,
    admin: _AddressFlag = _ADMIN,
    allow_origin: _Names = (),
    allowed_host: _Names = (),
    access_log: bool = False,
    metrics_upstream: _AddressFlag | None = None,
    otlp_endpoint: _AddressFlag | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    api_keys: Path | None = None,
    jwt_jwks: str | None = None,
    jwt_issuer: str | None = None,
    jwt_audience: str | None = None,
    jwt_tenant_claim: str = "sub",
    tenant_from_certificate: Annotated[bool, Parameter(negative="")] = False,
    upstream_tls: UpstreamTls = NO_UPSTREAM_TLS,
    max_connections: _Count = DEFAULT_LIMITS.max_connections,
    max_heap_bytes: _Size = DEFAULT_LIMITS.max_heap_bytes,
) -> None:
    """Write envoy.yaml, and api.binpb that it refers to, for an Envoy that you run yourself.

    Parameters
    ----------
    folder
        Where the files go. Envoy must see it under the same path.
    listen
        Address for clients.
    upstream
        A server's gRPC address; a name may resolve to several. Repeat the flag for more.
    route_by_key
        Send requests with the same prompt_cache_key, or the same beginning of a conversation, to the same server.
        Default: where there may be several, that is, with several addresses or a name.
    admin
        Address of Envoy's admin interface. Keep it private: it can stop the gateway.
    allow_origin
        Origin of web pages that may call, such as https://app.example; "*" allows all. Default: pages of this machine.
    allowed_host
        Host name under which the gateway answers, in addition to localhost. Default: no other on a loopback address,
        against web pages whose names resolve to it; any on other addresses.
    access_log
        Write a line for each request to standard output.
    metrics_upstream
        The server's Prometheus endpoint, to be served as /metrics. For a gateway with a single server. Default: none.
    otlp_endpoint
        Collector that takes spans as OTLP over gRPC, without TLS. Default: the gateway has no spans.
    tls_certificate
        PEM file of the gateway's certificate. Turns TLS on. Default: plain text.
    tls_key
        PEM file of the certificate's private key.
    tls_client_ca
        PEM file of the CA that signs client certificates, which are then required (mutual TLS).
    api_keys
        File with the hashes of API keys and their tenants, as the server's. It is read again when it changes. Requests
        then need a credential, except for health.
    jwt_jwks
        File or URL with the public keys (JWKS) of an identity provider, whose JWTs are then credentials too. A URL is
        fetched again every 5 minutes, a file is read at the start.
    jwt_issuer
        Issuer (`iss`) of valid JWTs.
    jwt_audience
        Audience (`aud`) of valid JWTs.
    jwt_tenant_claim
        Claim of JWTs that names the tenant.
    tenant_from_certificate
        The tenant of a request is the first URI, else the first DNS name, of the client's certificate.
    max_connections
        Most connections of clients. Further ones are closed at once.
    max_heap_bytes
        Envoy's memory, such as 2GiB. Near it, requests are refused with 503.
    """
    tls = _tls(tls_certificate, tls_key, tls_client_ca)
    tokens = _tokens(jwt_jwks, jwt_issuer, jwt_audience, jwt_tenant_claim)
    authentication = _authentication(api_keys, tokens, by_certificate=tenant_from_certificate, tls=tls)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    path = write_config(
        folder,
        GatewayOptions(
            listen=listen,
            upstream=upstream,
            allowed_origins=allow_origin,
            allowed_hosts=allowed_host,
            access_log=access_log,
            tls=tls,
            authentication=authentication,
            upstream_tls=_checked(upstream_tls),
            limits=Limits(max_connections=max_connections, max_heap_bytes=max_heap_bytes),
            by_key=route_by_key,
            telemetry=Telemetry(metrics=metrics_upstream, otlp=otlp_endpoint),
        ),
        admin=admin,
    )
    print(path)


@app.command
def health(*, upstream: _AddressFlag = _UPSTREAM, upstream_tls: UpstreamTls = NO_UPSTREAM_TLS) -> int:
    """Check a server's health. The exit status is 0 while it is SERVING.

    Parameters
    ----------
    upstream
        The server's gRPC address.
    """
    return 0 if is_serving(upstream, _checked(upstream_tls)) else 1


def _checked(tls: UpstreamTls) -> UpstreamTls:
    try:
        tls.check()
    except ValueError as error:
        raise GatewayError(str(error)) from error
    return tls


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    try:
        return parse_tls(certificate, key, client_ca)
    except ValueError as error:
        raise GatewayError(str(error)) from error


def _tokens(jwks: str | None, issuer: str | None, audience: str | None, tenant_claim: str) -> Tokens | None:
    try:
        return parse_tokens(jwks, issuer, audience, tenant_claim)
    except ValueError as error:
        raise GatewayError(str(error)) from error


def _authentication(
    api_keys: Path | None, tokens: Tokens | None, *, by_certificate: bool, tls: Tls | None
) -> Authentication:
    try:
        return parse_authentication(api_keys, tokens=tokens, by_certificate=by_certificate, tls=tls)
    except ValueError as error:
        raise GatewayError(str(error)) from error


async def _serve(envoy: Envoy, *, end_with_parent: bool) -> int:
    """Runs Envoy until a signal or the end of the parent process. Raises GatewayError if Envoy exits on its own."""
    parent = os.getppid()
    interrupted, forced = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (forced if interrupted.is_set() else interrupted).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    async with envoy:
        print(f"Gateway on {envoy.url}", flush=True)
        ended = asyncio.create_task(envoy.wait())
        reasons = [asyncio.create_task(_orphaned(parent))] if end_with_parent else []
        await _first(ended, asyncio.create_task(interrupted.wait()), *reasons)
        if ended.done():
            raise GatewayError(f"Envoy ended with status {ended.result()}:\n{envoy.log_tail()}")
        await _first(asyncio.create_task(envoy.drain()), asyncio.create_task(forced.wait()), ended)
    return 0


async def _orphaned(parent: int) -> None:
    """Waits until the process has a new parent. Polls: an orphan gets no notice."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(_PARENT_POLL_SECONDS)


async def _first(*tasks: asyncio.Task[object]) -> None:
    """Waits for the first of the tasks to end."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
