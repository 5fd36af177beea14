"""`glimpse pull`, `list` and `rm`, `ps` and `stop`: models on the disk of this machine, and servers that run on it."""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from cyclopts import Parameter

from glimpse.server.cli.local.running import RunningServer, memory_of, running_servers
from glimpse.server.cli.local.running import stop as stop_server
from glimpse.server.cli.local.tables import duration_text, json_text, size_text, table
from glimpse.usage import UsageError

_Json: TypeAlias = Annotated[bool, Parameter(negative="")]


def pull(model: str, /) -> None:
    """Downloads a model from the Hugging Face Hub; after Ctrl-C, the same command goes on where it was.

    Parameters
    ----------
    model
        Id of the model: ORG/NAME, or ORG/NAME:TYPE for its GGUF file of this type.
    """
    from glimpse.engine.checkpoint.families.companions import resolve_companions  # noqa: PLC0415 - see `app`
    from glimpse.engine.checkpoint.location import resolve_checkpoint  # noqa: PLC0415
    from glimpse.engine.errors import CheckpointError  # noqa: PLC0415

    try:
        resolve_companions(path := resolve_checkpoint(model), {})
    except CheckpointError as error:
        sys.exit(f"glimpse: {error}")
    print(path)


def list_models(*, json: _Json = False) -> None:
    """Lists the models of the Hugging Face Hub that are on this disk.

    Parameters
    ----------
    json
        Print JSON.
    """
    from glimpse.engine.checkpoint.hub import downloaded_models  # noqa: PLC0415

    models = [(each, _has_weights(each.folder)) for each in downloaded_models()]
    if json:
        print(json_text([{**asdict(each), "folder": str(each.folder), "is_complete": whole} for each, whole in models]))
        return
    rows = [
        (
            each.name,
            size_text(each.num_bytes),
            "complete" if whole else "incomplete",
            f"{duration_text(time.time() - each.modified)} ago",
        )
        for each, whole in models
    ]
    print(table(("NAME", "SIZE", "WEIGHTS", "CHANGED"), rows))


def _has_weights(folder: Path | None) -> bool:
    from glimpse.engine.errors import CheckpointError  # noqa: PLC0415
    from glimpse.engine.worker.loading.weight_files import read_headers  # noqa: PLC0415

    try:
        return folder is not None and read_headers(folder) is not None
    except CheckpointError:
        return False


def rm(*models: str) -> None:
    """Removes models of the Hugging Face Hub from this disk.

    Parameters
    ----------
    models
        Their ids: ORG/NAME.
    """
    from glimpse.engine.checkpoint.hub import remove  # noqa: PLC0415
    from glimpse.engine.errors import CheckpointError  # noqa: PLC0415

    for model in models:
        if server := next((each for each in running_servers() if each.serves(model)), None):
            sys.exit(f"glimpse: {model} is served by process {server.pid}; end it first: glimpse stop {server.pid}")
        try:
            remove(model)
        except CheckpointError as error:
            sys.exit(f"glimpse: {error}")
        print(f"removed {model}")


def ps(*, json: _Json = False) -> None:
    """Lists the servers that run on this machine, with their memory and where they listen.

    Parameters
    ----------
    json
        Print JSON.
    """
    servers = running_servers()
    if json:
        print(json_text([msgspec.to_builtins(each) | {"memory_bytes": memory_of(each.pid)} for each in servers]))
        return
    rows = [
        (
            each.names[0],
            str(each.pid),
            size_text(memory_of(each.pid)),
            each.target,
            each.http_url or "–",
            each.metrics_url,
            duration_text(time.time() - each.since),
        )
        for each in servers
    ]
    print(table(("NAME", "PID", "MEMORY", "GRPC", "REST", "METRICS", "UP FOR"), rows))


def stop(*servers: str, all: Annotated[bool, Parameter(negative="")] = False) -> None:  # noqa: A002 - the flag's name
    """Ends servers of this machine, as Ctrl-C does: running requests end first.

    Parameters
    ----------
    servers
        What they serve, or their process ids: the columns NAME and PID of `glimpse ps`.
    all
        End all.
    """
    if bool(servers) is all:
        raise UsageError("'SERVERS': expected names or process ids of `glimpse ps`, or --all")
    running = running_servers()
    chosen = running if all else [each for name in servers for each in _named(name, running)]
    for each in chosen:
        stop_server(each)
        print(f"ended {each.names[0]} (process {each.pid})")


def _named(name: str, running: Sequence[RunningServer]) -> list[RunningServer]:
    found = [each for each in running if name == str(each.pid) or each.serves(name)]
    if not found:
        served = ", ".join(each.names[0] for each in running) or "none"
        sys.exit(f"glimpse: no server of this machine serves {name}; served: {served}")
    return found
