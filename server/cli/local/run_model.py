"""`glimpse run`: downloads a model, checks that it fits, serves it and talks with it, in one command."""

import os
import signal
import sys

from rich.console import Console

from glimpse.engine.checkpoint.families.companions import resolve_companions
from glimpse.engine.checkpoint.location import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.weight_files import read_headers
from glimpse.server.cli.chat.command import Asking, Questions, talk
from glimpse.server.cli.chat.connection import Connection
from glimpse.server.cli.check_text import check_text
from glimpse.server.cli.console import LoadingProgress, say
from glimpse.server.cli.local.running import RunningServer, running_servers, state_folder
from glimpse.server.cli.local.started import started_server
from glimpse.server.cli.machine.served import port_near
from glimpse.server.cli.run_check import check_model
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.settings import EngineSettings, Settings
from glimpse.usage import UsageError

_OWN_ENGINE = {"model", "served_model_name"}


def run_model(settings: Settings, questions: Questions, asking: Asking, *, keep: bool) -> None:
    """Talks with the model of the settings. Ends the process with a message where it cannot be served.

    Args:
        settings: those of a server, which is started unless one serves the model on this machine.
        keep: let a server that is started go on.
    """
    model = settings.engine.model or str(DEFAULT_MODEL)
    server = next((each for each in running_servers() if each.serves(model)), None)
    if server is not None:
        _check_flags(server, settings)
        say(f"{server.names[0]} is served by process {server.pid}, which goes on afterwards.")
        talk(_connection(server.target), questions, asking)
        return
    try:
        fetch(model, settings.engine)
    except CheckpointError as error:
        sys.exit(f"glimpse: {error}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C ends a server too
    configure_logging(settings.listen.log_level)  # where there is no terminal, the progress is lines of a log
    with LoadingProgress(Console(stderr=True)) as progress:
        starting = started_server(_adapt(settings).model_dump_json(), keep=keep, on_loading=progress.show)
        with starting as served:
            progress.stop()
            say(served.description)
            talk(_connection(served.target), questions, asking)
            if keep:
                is_listed = any(each.pid == served.pid for each in running_servers())
                ending = "`glimpse stop`" if is_listed else f"{state_folder()} cannot be written; `kill {served.pid}`"
                say(f"The server goes on at {served.target}; {ending} ends it.")


def fetch(model: str, settings: EngineSettings) -> None:
    """Downloads a model unless it is here, once it is clear that this machine can serve it.

    Ends the process with a message if it cannot. Raises CheckpointError.
    """
    path = resolve_checkpoint(model, with_weights=False, mmproj=settings.mmproj)
    if read_headers(path) is None and not (check := check_model(model, settings)).can_be_served:
        sys.exit(f"glimpse: {check_text(check)}")
    resolve_companions(resolve_checkpoint(model, mmproj=settings.mmproj), settings.companions)


def _check_flags(server: RunningServer, settings: Settings) -> None:
    """Raises UsageError if the settings ask for another server than the one that runs."""
    defaults = Settings()
    engine = settings.engine.model_copy(update={name: getattr(defaults.engine, name) for name in _OWN_ENGINE})
    if (engine, settings.media, settings.access) != (defaults.engine, defaults.media, defaults.access):
        raise UsageError(
            f"{server.names[0]} is served by process {server.pid} already, with the flags of its own start; leave out"
            f" those of the server, or end it first: glimpse stop {server.pid}"
        )


def _connection(target: str) -> Connection:
    return Connection(target=target, api_key=os.environ.get("GLIMPSE_API_KEY"))


def _adapt(settings: Settings) -> Settings:
    """Returns the settings for a server of one conversation: with free ports in place of those that are taken."""
    listen = settings.listen.model_copy(
        update={
            "port": port_near(settings.listen.host, settings.listen.port),
            "metrics_port": port_near(settings.listen.metrics_host, settings.listen.metrics_port),
            "drain_delay": 0.0,
        }
    )
    engine = settings.engine.model_copy(update={"spare_engine": False})
    return settings.model_copy(update={"listen": listen, "engine": engine})
