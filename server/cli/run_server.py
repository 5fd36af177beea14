"""Runs a server in the foreground: shows its progress, prints how to reach it, and ends with an exit status."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import uvloop

from glimpse.engine.checkpoint.location import is_untrained
from glimpse.engine.errors import CheckpointError, EngineError
from glimpse.engine.protocol.cpu_policy import MAX_FEW_PROCESSORS, use_batch_policy
from glimpse.engine.protocol.messages import Loading, Ready
from glimpse.gateway.options import PublicOptions
from glimpse.identity.errors import IdentityConfigError
from glimpse.interrupts import INTERRUPTED
from glimpse.native.open_files import OpenFilesError, allow_files
from glimpse.native.processors import num_processors
from glimpse.server.cli.app import app
from glimpse.server.cli.console import LoadingProgress, ready_text, shared_console, wrapped
from glimpse.server.cli.examples import usage_text
from glimpse.server.cli.local.running import RunningServer, listed, tell_service_manager
from glimpse.server.cli.local.started import Started
from glimpse.server.lifecycle.addresses import PortError, address, local_host
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.served_checkpoint import Checkpoint, find_checkpoint
from glimpse.server.processes.front_ends import FrontEndDiedError
from glimpse.server.processes.gateway_child import GatewayDiedError
from glimpse.server.processes.run import Ports, run
from glimpse.server.settings import Settings
from glimpse.standard_streams import announce
from glimpse.usage import UsageError
from glimpse.variables import tell_unknown


def run_server(
    settings: Settings,
    *,
    http_port: int | None,
    gateway: PublicOptions,
    report: Callable[[Loading | Started], None] | None = None,
) -> None:
    """Serves until a signal ends it; exits with a message where it cannot, and with 130 after Ctrl-C while it starts.

    Raises UsageError for a file of the flags that cannot be used.

    Args:
        http_port: the gateway's port; None starts no gateway.
        report: called with the progress. Default: a person is told, and shown how to reach the server.
    """
    try:
        is_interrupted = _serve(settings, http_port, gateway, report)
    except IdentityConfigError as error:
        raise UsageError(str(error)) from error
    except (CheckpointError, EngineError, PortError, GatewayDiedError, FrontEndDiedError, OpenFilesError) as error:
        sys.exit(f"glimpse: {error}")
    if is_interrupted:
        sys.exit(INTERRUPTED)


def _serve(
    settings: Settings,
    http_port: int | None,
    gateway: PublicOptions,
    report: Callable[[Loading | Started], None] | None,
) -> bool:
    """Returns whether Ctrl-C ended it before it served."""
    allow_files()
    configure_logging(settings.listen.log_level)
    tell_unknown(app, "GLIMPSE_")
    if num_processors() <= MAX_FEW_PROCESSORS:
        use_batch_policy()  # the gateway too, which is started from here; the engine takes it back
    checkpoint = find_checkpoint(settings.engine)
    listing = ExitStack()

    def on_ready(ready: Ready, ports: Ports) -> None:
        server = _running(settings, checkpoint, ports)
        listing.enter_context(listed(server))
        tell_service_manager(f"READY=1\nSTATUS=serving {checkpoint.names[0]}")
        description = ready_text(
            ready,
            model=checkpoint.names[0],
            untrained=is_untrained(checkpoint.path),
            trained_len=checkpoint.model.text.max_position_embeddings,
            asked_len=settings.engine.options.max_model_len,
        )
        if report is not None:
            report(Started(pid=server.pid, target=server.target, description=description))
            return
        progress.stop()
        announce(f"{wrapped(description)}\n\n{_usage(settings, checkpoint, server, has_page=gateway.page)}")

    with (
        listing,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        shared_console() as console,
        LoadingProgress(console) as progress,
    ):
        return runner.run(
            run(
                settings,
                checkpoint,
                http_port=http_port,
                gateway_flags=gateway,
                on_loading=report or progress.show,
                on_ready=on_ready,
            )
        )


def _running(settings: Settings, checkpoint: Checkpoint, ports: Ports) -> RunningServer:
    host = local_host(settings.listen.host)
    return RunningServer(
        pid=os.getpid(),
        names=checkpoint.names,
        folder=str(checkpoint.path),
        target=address(host, ports.grpc),
        uses_tls=settings.listen.tls.tls_certificate is not None,
        http_url=None if ports.http is None else f"http://{address(host, ports.http)}",
        metrics_url=f"http://{address(local_host(settings.listen.metrics_host), ports.metrics)}/metrics",
        since=time.time(),
    )


def _usage(settings: Settings, checkpoint: Checkpoint, server: RunningServer, *, has_page: bool) -> str:
    usage = usage_text(
        model=checkpoint.names[0],
        http_url=None if checkpoint.model.token_embedding_size else server.http_url,  # OpenAI's API has no form for it
        target=server.target,
        reads_images="image" in checkpoint.model.placeholder_ids,
        only_embeds=checkpoint.model.is_embedding_model,
        uses_tls=server.uses_tls,
        needs_certificate=settings.listen.tls.tls_client_ca is not None,
        needs_key=settings.access.api_keys is not None or settings.access.authentication.jwt_jwks is not None,
    )
    opens_page = server.http_url is not None and has_page
    return f"Open {server.http_url} in a browser, or copy a command:\n\n{usage}" if opens_page else usage
