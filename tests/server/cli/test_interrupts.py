"""Ctrl-C while a command starts: exit status 130 and nothing on the terminal, at every moment of its imports."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

from glimpse.interrupts import INTERRUPTED
from tests.e2e.stack import children, free_ports
from tests.paths import ROOT

AT_IMPORT = """
import os, signal, sys
from glimpse.server.cli.main import main

class Interrupter:
    left = int(sys.argv.pop(1))
    def find_spec(self, *_):
        Interrupter.left -= 1
        if Interrupter.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
main()
"""
"""Runs `glimpse`, which gets SIGINT when it imports for the nth time."""

AT_EXEC = """
import os, signal
from glimpse.server.cli.main import main

execute = os.execv
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    execute(*arguments)

os.execv = interrupted
main()
"""
"""Runs `glimpse gateway`, which gets SIGINT between the program of `glimpse` and that of the gateway."""

IN_BACKGROUND = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + AT_IMPORT


IN_CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
"""Runs a command as the first process of a container."""


def run(program: str, *arguments: str, within: Sequence[str] = ()) -> tuple[int, str]:
    """Exit status and all output."""
    command = [*within, sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("command", [("serve", "--model=/nowhere"), ("chat", "Hello", "--target=127.0.0.1:1")])
@pytest.mark.parametrize("at", [1, 40, 200])
def test_ends_quietly_whatever_is_imported(command: tuple[str, ...], at: int) -> None:
    assert run(AT_IMPORT, str(at), *command) == (INTERRUPTED, "")


def test_ends_quietly_between_the_programs_of_the_gateway() -> None:
    assert run(AT_EXEC, "gateway", "--help") == (INTERRUPTED, "")


def test_background_jobs_of_scripts_ignore_it() -> None:
    assert run(IN_BACKGROUND, "1", "--version")[0] == 0


def test_a_container_that_still_starts_can_be_stopped() -> None:
    if shutil.which("unshare") is None or subprocess.run([*IN_CONTAINER, "true"], check=False).returncode:
        pytest.skip("needs namespaces of users and processes")
    terminated = AT_IMPORT.replace("SIGINT", "SIGTERM")
    assert run(terminated, "40", "serve", "--model=/nowhere", within=IN_CONTAINER) == (128 + signal.SIGTERM, "")


def test_the_gateway_ends_quietly_while_envoy_starts() -> None:
    """The gateway has Envoy's process once that reads its configuration."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "glimpse.gateway", "run", f"--listen=127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not children(process.pid, "envoy") and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (INTERRUPTED, "")


def test_a_question_ends_quietly_while_it_waits_for_its_answer() -> None:
    """The server takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"--target=127.0.0.1:{server.getsockname()[1]}"
        server.settimeout(60)
        command = [sys.executable, "-m", "glimpse", "chat", "Hello", target]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            connection, _ = server.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (INTERRUPTED, "")
