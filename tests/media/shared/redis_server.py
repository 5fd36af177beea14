"""A real Redis for tests: Debian's `redis-server`, or Valkey's."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis

from tests.e2e.stack import free_ports
from tests.waiting import eventually

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A Redis that tests stop, pause and start again. It persists nothing. As a context manager it stops at the end."""

    def __init__(self, folder: Path, *options: str, port_option: str = "--port") -> None:
        """Starts it. Skips the test where there is no Redis.

        Args:
            options: Redis' own, such as "--requirepass", "secret".
        """
        if PROGRAM is None:
            pytest.skip("needs Redis: apt install redis-server")
        (self.port,) = free_ports(1)
        self._folder = folder
        self._options = options
        self._port_option = port_option
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """A client of the tests' own, to look into Redis and to change what it has."""
        return redis.Redis(port=self.port)

    def start(self) -> None:
        """Starts it, empty, and waits until it accepts connections."""
        command = [
            str(PROGRAM),
            "--bind",
            "127.0.0.1",
            self._port_option,
            str(self.port),
            "--save",
            "",
            "--dir",
            self._folder,
        ]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self._options], stdout=log, stderr=subprocess.STDOUT)
        assert eventually(self._accepts), (self._folder / "redis.log").read_text()

    def stop(self) -> None:
        """Kills it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Lets it accept connections but answer nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
