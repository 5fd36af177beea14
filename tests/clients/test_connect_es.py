"""The example client in TypeScript, made with connect-es and stubs from the protos, in each protocol that it speaks."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from glimpse.client import Client, Image
from tests.e2e.node import NODE
from tests.e2e.stack import ROOT, Stack, eventually

QUESTION = "What is in this image?"
EXAMPLE = ROOT / "examples" / "typescript"
IMAGE = ROOT / "examples" / "image.png"

Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Path:
    """Generates the stubs and compiles, which also checks the types."""
    environment = os.environ | {"PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (["buf", "generate"], ["tsc"]):
        command[0] = str(EXAMPLE / "node_modules" / ".bin" / command[0])
        result = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    return EXAMPLE / "build" / "ask.js"


@pytest.fixture(params=["grpc-web", "grpc"])
def ask(request: pytest.FixtureRequest, program: Path, stack: Stack) -> Ask:
    def run(*flags: str, image: Path = IMAGE) -> subprocess.CompletedProcess[str]:
        target = f"--target=127.0.0.1:{stack.http_port}"
        command = [NODE, program, target, f"--protocol={request.param}", *flags, QUESTION, image]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


def answer(stack: Stack) -> str:
    with Client(stack.target) as client:
        return client.chat([Image(IMAGE), QUESTION], temperature=0, max_completion_tokens=64).text


def test_streams_an_answer_about_an_image(ask: Ask, stack: Stack) -> None:
    result = ask()
    assert (result.returncode, result.stdout, result.stderr) == (0, answer(stack) + "\n", "")


def test_cancels_a_stream(ask: Ask, stack: Stack) -> None:
    result = ask("--cancel-after=2")
    assert (result.returncode, result.stderr.partition(":")[0]) == (1, "Canceled")
    assert result.stdout.strip()
    assert answer(stack).startswith(result.stdout)
    assert eventually(lambda: stack.metric("glimpse_running_sequences") == 0, timeout_seconds=60)


def test_deadline_ends_the_call(ask: Ask) -> None:
    result = ask("--deadline=0.001")
    assert (result.returncode, result.stderr.partition(":")[0]) == (1, "DeadlineExceeded")


def test_reads_the_details_of_an_error(ask: Ask) -> None:
    result = ask(image=ROOT / "examples" / "README.md")
    status, *details = result.stderr.splitlines()
    assert (result.returncode, status.partition(":")[0]) == (1, "InvalidArgument")
    assert details == ["reason: UNSUPPORTED_MEDIA_FORMAT", "field: messages[0].content[0].image.source"]
