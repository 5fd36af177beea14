"""The entry point of the command `glimpse`, which `glimpse.server.cli.app` is."""

from glimpse.interrupts import exit_on_interrupt
from glimpse.standard_streams import open_closed_streams


def main() -> None:
    """Runs the command that this process's arguments name. Ctrl-C ends it while it starts."""
    exit_on_interrupt()
    open_closed_streams()
    from glimpse.server.cli.app import run  # noqa: PLC0415 - Ctrl-C while this is imported prints no traceback

    run()
