"""Runs a server in the foreground: shows its progress, prints how to reach it, and ends with an exit status."""

import asyncio
import sys

import uvloop

from glimpse.engine.checkpoint.location import is_untrained
from glimpse.engine.errors import CheckpointError, EngineError
from glimpse.engine.protocol.cpu_policy import MAX_FEW_PROCESSORS, use_batch_policy
from glimpse.engine.protocol.messages import Ready
from glimpse.gateway.options import PublicOptions
from glimpse.identity.errors import IdentityConfigError
from glimpse.interrupts import INTERRUPTED
from glimpse.native.open_files import OpenFilesError, allow_files
from glimpse.native.processors import num_processors
from glimpse.server.cli.console import LoadingProgress, ready_text, shared_console
from glimpse.server.cli.examples import usage_text
from glimpse.server.lifecycle.addresses import PortError, address, local_host
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.processes.front_ends import FrontEndDiedError
from glimpse.server.processes.gateway_child import GatewayDiedError
from glimpse.server.processes.run import run
from glimpse.server.settings import Settings
from glimpse.standard_streams import announce
from glimpse.usage import UsageError


def run_server(settings: Settings, *, http_port: int | None, gateway: PublicOptions) -> None:
    """Serves until a signal ends it; exits with a message where it cannot, and with 130 after Ctrl-C while it starts.

    Raises UsageError for a file of the flags that cannot be used.

    Args:
        settings: the server's.
        http_port: the gateway's port; None starts no gateway.
        gateway: the gateway's flags.
    """
    try:
        is_interrupted = _serve(settings, http_port, gateway)
    except IdentityConfigError as error:
        raise UsageError(str(error)) from error
    except (CheckpointError, EngineError, PortError, GatewayDiedError, FrontEndDiedError, OpenFilesError) as error:
        sys.exit(f"glimpse: {error}")
    if is_interrupted:
        sys.exit(INTERRUPTED)


def _serve(settings: Settings, http_port: int | None, gateway: PublicOptions) -> bool:
    """Returns whether Ctrl-C ended it before it served."""
    allow_files()
    configure_logging(settings.listen.log_level)
    if num_processors() <= MAX_FEW_PROCESSORS:
        use_batch_policy()  # the gateway too, which is started from here; the engine takes it back
    checkpoint = find_checkpoint(settings.engine)
    model = checkpoint.names[0]
    host = local_host(settings.listen.host)

    def on_ready(ready: Ready, port: int, http_port: int | None) -> None:
        progress.stop()
        description = ready_text(
            ready,
            model=model,
            untrained=is_untrained(checkpoint.path),
            trained_len=checkpoint.model.text.max_position_embeddings,
            asked_len=settings.engine.options.max_model_len,
        )
        parts = [description]
        http_url = None if http_port is None else f"http://{address(host, http_port)}"
        if http_url is not None and gateway.page:
            parts.append(f"Open {http_url} in a browser, or copy a command:")
        target = address(host, port)
        usage = usage_text(
            model=model,
            http_url=http_url,
            target=target,
            reads_images="image" in checkpoint.model.placeholder_ids,
            only_embeds=checkpoint.model.is_embedding_model,
            uses_tls=settings.listen.tls.tls_certificate is not None,
            needs_certificate=settings.listen.tls.tls_client_ca is not None,
            needs_key=settings.access.api_keys is not None or settings.access.authentication.jwt_jwks is not None,
        )
        announce("\n\n".join([*parts, usage]))

    with (
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
                on_loading=progress.show,
                on_ready=on_ready,
            )
        )
