"""The command `glimpse gateway`: run Envoy, write its configuration for an Envoy elsewhere, check a server's health."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from glimpse.gateway.address import Address
from glimpse.gateway.admin import AdminError
from glimpse.gateway.config import UPSTREAM, GatewayOptions, write_config
from glimpse.gateway.health import is_serving
from glimpse.gateway.options import AddressFlag, Count, PublicOptions
from glimpse.gateway.run import Envoy, GatewayError, writing_files
from glimpse.gateway.tls import NO_UPSTREAM_TLS, UpstreamTls
from glimpse.identity.errors import IdentityConfigError
from glimpse.interrupts import INTERRUPTED
from glimpse.native.open_files import OpenFilesError
from glimpse.native.processors import num_processors
from glimpse.standard_streams import announce, explained_output
from glimpse.stop_signals import StopSignals
from glimpse.tasks import first
from glimpse.usage import USAGE_STATUS, UsageError
from glimpse.variables import Variables, tell_overridden, tell_unknown

_DEFAULTS = GatewayOptions()
_ADMIN = Address(host="127.0.0.1", port=9901)
_MAX_WORKERS = 8
# One worker handles tens of thousands of events per second; the other cores are for the model.
_WORKERS = max(1, min(_MAX_WORKERS, num_processors() // 4))

_PARENT_POLL_SECONDS = 0.5

_PREFIX = "GLIMPSE_GATEWAY_"

app = App(
    name="glimpse gateway",
    help="Envoy in front of Glimpse's gRPC server: OpenAI's REST and SSE, grpc-web and gRPC on one port.",
    version_flags=[],
    config=Variables(_PREFIX, command=False),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that the arguments name. None: this process's arguments."""
    try:
        with explained_output("glimpse gateway"):
            app(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, UsageError) as error:
        from glimpse.flag_errors import explain_flags  # noqa: PLC0415 - only a refusal needs it

        reason = explain_flags(error) if isinstance(error, CycloptsError) else error
        print(f"glimpse gateway: {reason}", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    except (GatewayError, OpenFilesError) as error:
        sys.exit(f"glimpse gateway: {error}")


@app.command
def run(
    *,
    options: GatewayOptions = _DEFAULTS,
    drain_seconds: Annotated[int, Parameter(validator=Number(gte=0))] = 30,
    workers: Count = _WORKERS,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    run_dir: Path | None = None,
    end_with_parent: int | None = None,
    ready_descriptor: Annotated[int | None, Parameter(show=False)] = None,
    public: Annotated[str | None, Parameter(show=False)] = None,
) -> int:
    """Run Envoy in the foreground. SIGTERM or Ctrl-C drains and stops it; a second one stops it at once.

    Parameters
    ----------
    drain_seconds
        How long a stop waits for running requests.
    workers
        Envoy's worker threads.
    log_level
        Level of Envoy's log.
    run_dir
        Folder for the configuration, the admin socket and Envoy's log. Default: a temporary one.
    end_with_parent
        Stop, as on SIGTERM, when the parent process exits, whose process id this is.
    ready_descriptor
        File descriptor, of a pipe for instance, that gets the line which says where the gateway listens. Default:
        standard output.
    public
        `PublicOptions` as JSON, from `glimpse up`. They come first.
    """
    if public is not None:
        options = options.with_public(public)
        names = ("listen", "upstream", "drain_seconds", *(field.name for field in fields(PublicOptions)))
        tell_overridden(
            [f"{_PREFIX}{name.upper()}" for name in names], "`glimpse up` has flags of its own (`--help-all`)"
        )
    _check(options)
    tell_unknown(app, _PREFIX)
    with writing_files():
        temporary = tempfile.TemporaryDirectory(prefix="glimpse-gateway-")
        folder = run_dir or Path(temporary.name)
        folder.mkdir(parents=True, exist_ok=True)
    with temporary:
        envoy = Envoy(options, run_dir=folder, drain_seconds=drain_seconds, num_workers=workers, log_level=log_level)
        return asyncio.run(_serve(envoy, end_with_parent=end_with_parent, ready_descriptor=ready_descriptor))


@app.command
def config(
    folder: Path,
    *,
    options: GatewayOptions = _DEFAULTS,
    admin: AddressFlag = _ADMIN,
) -> None:
    """Write envoy.yaml, and api.binpb that it refers to, for an Envoy that you run yourself.

    Parameters
    ----------
    folder
        Where the files go. Envoy must see it under the same path.
    admin
        Address of Envoy's admin interface. Keep it private: it can stop the gateway.
    """
    _check(options)
    folder = folder.absolute()
    with writing_files():
        folder.mkdir(parents=True, exist_ok=True)
        print(write_config(folder, options, admin=admin))


@app.command
def health(
    *,
    upstream: AddressFlag | None = None,
    port: Annotated[int, Parameter(env_var="GLIMPSE_PORT")] = UPSTREAM.port,
    upstream_tls: UpstreamTls = NO_UPSTREAM_TLS,
) -> int:
    """Check a server's health. The exit status is 0 while it is SERVING.

    Parameters
    ----------
    upstream
        The server's gRPC address. Default: this machine's, with --port.
    port
        The gRPC port of a server on this machine, as that server's --port.
    """
    _check(upstream_tls)
    return 0 if is_serving(upstream or replace(UPSTREAM, port=port), upstream_tls) else 1


def _check(options: GatewayOptions | UpstreamTls) -> None:
    """Raises UsageError where the flags cannot be used together."""
    try:
        options.check()
    except (ValueError, IdentityConfigError) as error:
        raise UsageError(str(error)) from error


async def _serve(envoy: Envoy, *, end_with_parent: int | None, ready_descriptor: int | None) -> int:
    """Runs Envoy until a signal or the end of the parent process. Raises GatewayError if Envoy exits on its own."""
    signals = StopSignals()
    with signals.catching():
        starting = asyncio.create_task(envoy.start())
        await first(asyncio.wait([starting]), signals.stop_requested.wait())
        # It may serve although this process has not noticed yet: then running requests are drained.
        if not starting.done() and not await envoy.is_serving():
            starting.cancel()
            await asyncio.wait([starting])
            return INTERRUPTED if signals.by_keyboard else 0
        await starting
        try:
            if not signals.stop_requested.is_set():
                _announce(f"Gateway on {envoy.url}", ready_descriptor)
            parent = [] if end_with_parent is None else [_orphaned(end_with_parent)]
            await first(_watch(envoy), signals.stop_requested.wait(), *parent)
            with suppress(AdminError):  # Envoy ended meanwhile
                await first(envoy.drain(), signals.stop_now.wait())
        finally:
            await envoy.stop()
    return 0


async def _watch(envoy: Envoy) -> None:
    """Waits until Envoy exits, and raises GatewayError."""
    raise GatewayError(f"Envoy ended with status {await envoy.wait()}: {envoy.last_words()}")


def _announce(line: str, descriptor: int | None) -> None:
    if descriptor is None:
        announce(line)
        return
    with suppress(BrokenPipeError):  # the parent has ended, and so does this process in a moment
        os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


async def _orphaned(parent: int) -> None:
    """Waits until the process has another parent, which it may have from the start. Polls: an orphan gets no notice."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(_PARENT_POLL_SECONDS)
