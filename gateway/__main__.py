"""`python -m glimpse.gateway` is the command `glimpse gateway`."""

from glimpse.interrupts import exit_on_interrupt
from glimpse.standard_streams import open_closed_streams

if __name__ == "__main__":
    exit_on_interrupt()
    open_closed_streams()
    from glimpse.gateway.cli import main  # Ctrl-C while this is imported prints no traceback

    main()
