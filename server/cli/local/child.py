"""The program of a server that a command starts, with the settings on standard input. `started` says what it is for."""

import os
import signal
import sys
import threading
from contextlib import suppress

import msgspec

from glimpse.engine.protocol.messages import Loading
from glimpse.gateway.options import PublicOptions
from glimpse.server.cli.local.started import KEEP, Started, StartFailed
from glimpse.server.cli.run_server import run_server
from glimpse.server.settings import Settings
from glimpse.usage import UsageError


def main() -> None:
    """Serves until standard input ends; a byte there lets the server go on without it."""
    settings = Settings.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_watch_standard_input, daemon=True).start()
    # What others print goes to the log.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(message: Loading | Started | StartFailed) -> None:
        with suppress(BrokenPipeError):
            reports.write(msgspec.json.encode(message) + b"\n")

    try:
        run_server(settings, http_port=None, gateway=PublicOptions(), report=report)
    except UsageError as error:
        report(StartFailed(message=f"glimpse: {error}"))
        raise
    except SystemExit as error:
        if isinstance(error.code, str):
            report(StartFailed(message=error.code))
        raise


def _watch_standard_input() -> None:
    if sys.stdin.buffer.read(1) != KEEP:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
