"""The programs of examples/: all print the same answer, and a plain message where no server runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.node import NODE
from tests.e2e.stack import ROOT, Stack

EXAMPLES = ROOT / "examples"
IMAGE = EXAMPLES / "image.png"
QUESTION = "What is in this image?"

CLIENTS = {
    "openai-python": [sys.executable, str(EXAMPLES / "python/openai_client.py")],
    "openai-node": [str(NODE), str(EXAMPLES / "node/openai.mjs")],
    "glimpse-python": [sys.executable, str(EXAMPLES / "python/glimpse_client.py")],
    "grpc-node": [str(NODE), str(EXAMPLES / "node/grpc.mjs")],
}


def run(client: str, *arguments: str, url: str, target: str) -> subprocess.CompletedProcess[str]:
    command = [*CLIENTS[client], *arguments]
    environment = os.environ | {"GLIMPSE_URL": url, "GLIMPSE_TARGET": target}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def answer(stack: Stack, client: str, *, image: Path | None, stream: bool, target: str | None = None) -> str:
    arguments = [*(["--stream"] if stream else []), QUESTION, *([str(image)] if image else [])]
    done = run(client, *arguments, url=stack.openai_url, target=target or stack.target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    return done.stdout


@pytest.fixture(scope="module")
def answers(stack: Stack) -> dict[Path | None, str]:
    """The answers to compare with: unary, over typed gRPC from Python."""
    return {image: answer(stack, "glimpse-python", image=image, stream=False) for image in (None, IMAGE)}


@pytest.mark.parametrize("image", [None, IMAGE], ids=["text", "image"])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_examples_print_the_same_answer(
    stack: Stack, answers: dict[Path | None, str], client: str, stream: bool, image: Path | None
) -> None:
    assert answer(stack, client, image=image, stream=stream) == answers[image]


def test_answer_depends_on_the_image(answers: dict[Path | None, str]) -> None:
    assert answers[None]
    assert answers[None] != answers[IMAGE]


@pytest.mark.parametrize("client", ["glimpse-python", "grpc-node"])
def test_grpc_examples_work_through_envoy(stack: Stack, answers: dict[Path | None, str], client: str) -> None:
    through_envoy = f"127.0.0.1:{stack.http_port}"
    assert answer(stack, client, image=IMAGE, stream=True, target=through_envoy) == answers[IMAGE]


@pytest.mark.parametrize("client", CLIENTS)
def test_examples_say_when_the_server_is_down(client: str) -> None:
    done = run(client, QUESTION, url="http://127.0.0.1:1/v1", target="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no answer from ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
