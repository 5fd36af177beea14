"""A program at a terminal of its own, and what it shows there."""

import codecs
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pyte

from tests.paths import ROOT
from tests.waiting import eventually

_OPENING_ITS_TERMINAL = ("/bin/sh", "-c", 'exec "$@" <"$0"')
"""Runs a command in a session whose terminal is the one that $0 names: the first one that the session's leader opens.

A `preexec_fn` could set it too, but it runs after a fork of this process, whose threads (gRPC's) crash the child.
"""
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>])")


class Terminal:
    """Types on the keyboard, and reads the screen."""

    def __init__(self, *command: str, environment: Mapping[str, str], columns: int = 200, rows: int = 50) -> None:
        self._keyboard, child = pty.openpty()
        self._emulated = pyte.HistoryScreen(columns, rows, history=10_000)
        self._lock = threading.Lock()
        termios.tcsetwinsize(child, (rows, columns))
        # prompt_toolkit would ask the terminal where the cursor is, and wait for an answer.
        variables = os.environ | {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", **environment}
        self.process = subprocess.Popen(
            (*_OPENING_ITS_TERMINAL, os.ttyname(child), *command),
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=ROOT,
            env={name: value for name, value in variables.items() if name not in ("COLUMNS", "LINES")},
            start_new_session=True,
        )
        os.close(child)
        self._shown = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        stream, decoder = pyte.Stream(self._emulated), codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while data := os.read(self._keyboard, 1 << 16):
                with self._lock:
                    self._shown += (text := decoder.decode(data))
                    stream.feed(text)
        except OSError:  # the program has ended
            pass

    def text(self) -> str:
        """Everything that was shown, without colours and movements of the cursor."""
        with self._lock:
            return _ESCAPES.sub("", self._shown).replace("\r", "")

    def lines(self) -> list[str]:
        """What a person sees who scrolls up to the beginning: the lines that left the screen, and those on it."""
        with self._lock:
            left = ["".join(line[x].data for x in range(self._emulated.columns)) for line in self._emulated.history.top]
            return [line.rstrip() for line in (*left, *self._emulated.display)]

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the window; the program gets SIGWINCH."""
        with self._lock:
            self._emulated.resize(rows, columns)
        termios.tcsetwinsize(self._keyboard, (rows, columns))

    def type(self, text: str) -> None:
        """Presses keys; "\\r" is Enter, "\\x03" Ctrl-C, "\\x04" Ctrl-D."""
        os.write(self._keyboard, text.encode())

    def shows(self, text: str, times: int = 1) -> None:
        """Waits until the text was shown so many times."""
        done = eventually(lambda: self.text().count(text) >= times)
        assert done, f"{text!r} is not in:\n{self.text()}"

    def close(self) -> None:
        """Ends the program if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._keyboard)


@contextmanager
def glimpse(*arguments: str, environment: Mapping[str, str], columns: int = 200, rows: int = 50) -> Generator[Terminal]:
    """The command at a terminal."""
    command = (sys.executable, "-m", "glimpse", *arguments)
    terminal = Terminal(*command, environment=environment, columns=columns, rows=rows)
    try:
        yield terminal
    finally:
        terminal.close()
