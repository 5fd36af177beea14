"""A program at a terminal of its own, and what it shows there."""

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from tests.e2e.stack import eventually
from tests.paths import ROOT

_OPENING_ITS_TERMINAL = ("/bin/sh", "-c", 'exec "$@" <"$0"')
"""Runs a command in a session whose terminal is the one that $0 names: the first one that the session's leader opens.

A `preexec_fn` could set it too, but it runs after a fork of this process, whose threads (gRPC's) crash the child.
"""
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>])")


class Terminal:
    """Types on the keyboard, and reads the screen."""

    def __init__(self, *command: str, environment: Mapping[str, str]) -> None:
        self._keyboard, child = pty.openpty()
        # prompt_toolkit would ask the terminal where the cursor is, and wait for an answer.
        variables = os.environ | {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", "COLUMNS": "200", **environment}
        self.process = subprocess.Popen(
            (*_OPENING_ITS_TERMINAL, os.ttyname(child), *command),
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=ROOT,
            env=variables,
            start_new_session=True,
        )
        os.close(child)
        self._screen = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._keyboard, 1 << 16):
                self._screen += data
        except OSError:  # the program has ended
            pass

    def text(self) -> str:
        """Everything that was shown, without colours and movements of the cursor."""
        return _ESCAPES.sub("", self._screen.decode(errors="replace")).replace("\r", "")

    def lines(self) -> list[str]:
        """The lines of the screen: what was on one before it was erased is not there."""
        shown = (line.rpartition("\x1b[2K")[2] for line in self._screen.decode(errors="replace").split("\n"))
        return [_ESCAPES.sub("", line).strip("\r") for line in shown]

    def type(self, text: str) -> None:
        """Presses keys; "\\r" is Enter, "\\x03" Ctrl-C, "\\x04" Ctrl-D."""
        os.write(self._keyboard, text.encode())

    def shows(self, text: str, times: int = 1) -> None:
        """Waits until the text was shown so many times."""
        done = eventually(lambda: self.text().count(text) >= times, timeout_seconds=60)
        assert done, f"{text!r} is not in:\n{self.text()}"

    def close(self) -> None:
        """Ends the program if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._keyboard)


@contextmanager
def glimpse(*arguments: str, environment: Mapping[str, str]) -> Generator[Terminal]:
    """The command at a terminal."""
    terminal = Terminal(sys.executable, "-m", "glimpse", *arguments, environment=environment)
    try:
        yield terminal
    finally:
        terminal.close()
