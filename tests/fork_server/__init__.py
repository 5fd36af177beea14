"""Servers under test, their engines and decoders are forks of processes that have imported what they need.

Importing it takes a front end 0.8 s of a processor, an engine 1.7 s and a decoder 0.2 s, and the tests start a hundred
of each, or more.

A test starts a front end, or another command, as a `Fork`. That starts `python -m glimpse.engine.worker.process` as
always; before Python runs the module, `fork_client` asks for a fork that does, with the same arguments, variables and
open files. It waits and ends as the fork ends, and the fork dies with it.
"""

import atexit
import functools
import marshal
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests import loop_watchdog
from tests.paths import ROOT

_FOLDER = Path(__file__).parent
_FRONT_END = ("glimpse.server.cli.app", "glimpse.server.cli.run_server", "glimpse.server.cli.flag_forms")
_ENGINE = ("glimpse.engine.worker.loading.load_engine", "glimpse.engine.worker.native.backend")
_DECODER = (
    "glimpse.media.decoding.document_file",
    "glimpse.media.decoding.video_frames",
    "glimpse.media.native.library",
)


def with_forks(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a watched server (`tests.loop_watchdog`) whose children are forks."""
    environment = loop_watchdog.watched(environment)
    if sys.platform != "linux":
        return environment
    path = os.pathsep.join((environment["PYTHONPATH"], str(_FOLDER)))
    # One thread, as decoders have: threads do not outlive a fork, and reserve memory.
    addresses = (_address(_FRONT_END), _address(_ENGINE), _address(_DECODER, OPENBLAS_NUM_THREADS="1"))
    servers = " ".join((*addresses, str(Path(sys.prefix).resolve())))
    return {**environment, "PYTHONPATH": path, "GLIMPSE_TESTS_FORK_SERVERS": servers}


def without_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts all as users do, for a test that looks at their imports, stops them, or asks whose children they are."""
    monkeypatch.delenv("GLIMPSE_TESTS_FORK_SERVERS", raising=False)


class Fork:
    """A program in Python that runs as a fork, used as `subprocess.Popen` is. It dies with this process."""

    def __init__(
        self, arguments: Sequence[str], *, files: tuple[int, int, int], folder: Path, environment: Mapping[str, str]
    ) -> None:
        """`arguments` are Python's, `files` are standard input, standard output and standard error."""
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(f"\0{_address(_FRONT_END)}")
        message = marshal.dumps(([*arguments], {**environment}, str(folder), [0, 1, 2]))
        socket.send_fds(self._connection, [message], files)
        self.pid = int(self._connection.recv(16))

    def poll(self) -> int | None:
        with suppress(TimeoutError):
            self._wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        try:
            return self._wait(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = int(self._connection.recv(16))
            except BlockingIOError:
                raise TimeoutError from None
            self._connection.close()
        return self.returncode


def glimpse(
    *arguments: str, standard_input: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a fork, in the repository's folder, and waits until it has ended."""
    command = ["-m", "glimpse", *arguments]
    variables = {**os.environ, **(environment or {})}
    with TemporaryFile("w+") as given, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        given.write(standard_input)
        given.seek(0)
        if sys.platform == "linux":
            files = (given.fileno(), output.fileno(), errors.fileno())
            process = Fork(command, files=files, folder=ROOT, environment=variables)
        else:
            process = subprocess.Popen(
                [sys.executable, *command], stdin=given, stdout=output, stderr=errors, cwd=ROOT, env=variables
            )
        status = process.wait(timeout=200)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


@functools.cache
def _address(imported: tuple[str, ...], **variables: str) -> str:
    """Starts a server, which ends with this process, and returns its abstract address."""
    address = f"glimpse-tests-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{address}")
        listening.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(listening.fileno()), *imported],
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            cwd=ROOT,
            env=loop_watchdog.watched(os.environ | variables),
        )
    atexit.register(server.communicate)  # the end of its standard input ends it
    return address
