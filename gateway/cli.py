"""The command `glimpse gateway`: run Envoy, write its configuration for an Envoy elsewhere, check a server's health."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env
from cyclopts.validators import Number

from glimpse.gateway.address import Address
from glimpse.gateway.config import UPSTREAM, GatewayOptions, write_config
from glimpse.gateway.health import is_serving
from glimpse.gateway.options import AddressFlag, Count
from glimpse.gateway.run import Envoy, GatewayError, writing_files
from glimpse.gateway.tls import NO_UPSTREAM_TLS, UpstreamTls
from glimpse.identity.errors import IdentityConfigError
from glimpse.interrupts import INTERRUPTED
from glimpse.native.open_files import OpenFilesError
from glimpse.native.processors import num_processors
from glimpse.standard_streams import announce

_DEFAULTS = GatewayOptions()
_ADMIN = Address(host="127.0.0.1", port=9901)
_MAX_WORKERS = 8
# One worker handles tens of thousands of events per second; the other cores are for the model.
_WORKERS = max(1, min(_MAX_WORKERS, num_processors() // 4))

_PARENT_POLL_SECONDS = 0.5
_USAGE_STATUS = 2
"""Exit status after wrong flags, as the server's."""

app = App(
    name="glimpse gateway",
    help="Envoy in front of Glimpse's gRPC server: OpenAI's REST and SSE, grpc-web and gRPC on one port.",
    version_flags=[],
    config=Env("GLIMPSE_GATEWAY_", command=False),
)


class FlagError(Exception):
    """Flags contradict each other, or name a file that cannot be used. The message is for the user."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command that the arguments name. None: this process's arguments."""
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, FlagError) as error:
        from glimpse.flag_errors import explain_flags  # noqa: PLC0415 - only a refusal needs it

        reason = explain_flags(error) if isinstance(error, CycloptsError) else error
        print(f"glimpse gateway: {reason}", file=sys.stderr)
        sys.exit(_USAGE_STATUS)
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
    _check(options)
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
    """Raises FlagError where the flags cannot be used together."""
    try:
        options.check()
    except (ValueError, IdentityConfigError) as error:
        raise FlagError(str(error)) from error


async def _serve(envoy: Envoy, *, end_with_parent: int | None, ready_descriptor: int | None) -> int:
    """Runs Envoy until a signal or the end of the parent process. Raises GatewayError if Envoy exits on its own."""
    interrupted, forced = asyncio.Event(), asyncio.Event()
    numbers = list[int]()

    def on_signal(number: int) -> None:
        numbers.append(number)
        (forced if interrupted.is_set() else interrupted).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    starting = asyncio.create_task(envoy.start())
    await _first(starting, asyncio.create_task(interrupted.wait()))
    # It may serve although this process has not noticed yet: then running requests are drained.
    if not starting.done() and not await envoy.is_serving():
        starting.cancel()
        await asyncio.wait([starting])
        return INTERRUPTED if numbers[0] == signal.SIGINT else 0
    await starting
    try:
        if not interrupted.is_set():
            _announce(f"Gateway on {envoy.url}", ready_descriptor)
        ended = asyncio.create_task(envoy.wait())
        reasons = [] if end_with_parent is None else [asyncio.create_task(_orphaned(end_with_parent))]
        await _first(ended, asyncio.create_task(interrupted.wait()), *reasons)
        if ended.done():
            raise GatewayError(f"Envoy ended with status {ended.result()}: {envoy.last_words()}")
        await _first(asyncio.create_task(envoy.drain()), asyncio.create_task(forced.wait()), ended)
    finally:
        await envoy.stop()
    return 0


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


async def _first(*tasks: asyncio.Task[object]) -> None:
    """Waits for the first of the tasks to end."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
