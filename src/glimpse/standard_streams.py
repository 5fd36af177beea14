"""Standard input, output and error of programs that serve: closed ones, and output that nobody takes.

Commands import this module before others, so it imports little.
"""

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

_STREAMS = {0: ("stdin", "r"), 1: ("stdout", "w"), 2: ("stderr", "w")}
"""Number → the name in `sys` and the mode."""
_WITHOUT_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def open_closed_streams() -> None:
    """Opens /dev/null in place of closed standard streams, whose numbers files that are opened later would get."""
    for number, (name, mode) in _STREAMS.items():
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the smallest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def announce(text: str) -> None:
    """Prints a line or more. A server goes on where the disk is full or the reader has left, and prints no more."""
    try:
        print(text, flush=True)
    except OSError:
        _drop_output()


@contextmanager
def explained_output(program: str) -> Generator[None]:
    """Ends the program with status 1 where its output finds no reader or no room, which it says in a line."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has left (`glimpse chat … | head`)
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _WITHOUT_ROOM:
            raise
        _drop_output()
        sys.exit(f"{program}: cannot write {error.filename or 'the output'}: {error.strerror}")


def _drop_output() -> None:
    """Keeps Python from trying again to write the text when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
