"""The programs of examples/: all print the same answer, and a plain message where no server runs."""

import json
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
    "responses-python": [sys.executable, str(EXAMPLES / "python/responses_client.py")],
    "anthropic-python": [sys.executable, str(EXAMPLES / "python/anthropic_client.py")],
    "openai-node": [str(NODE), str(EXAMPLES / "node/openai.mjs")],
    "glimpse-python": [sys.executable, str(EXAMPLES / "python/glimpse_client.py")],
    "grpc-node": [str(NODE), str(EXAMPLES / "node/grpc.mjs")],
}


def run(client: str, *arguments: str, url: str, target: str) -> subprocess.CompletedProcess[str]:
    command = [*(CLIENTS | {"curl": [str(EXAMPLES / "curl/ask.sh")]})[client], *arguments]
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


@pytest.mark.parametrize(("stream", "image"), [(False, None), (True, IMAGE)], ids=["unary text", "streamed image"])
@pytest.mark.parametrize("client", CLIENTS)
def test_examples_print_the_same_answer(
    stack: Stack, answers: dict[Path | None, str], client: str, stream: bool, image: Path | None
) -> None:
    assert answer(stack, client, image=image, stream=stream) == answers[image]


def test_answer_depends_on_the_image(answers: dict[Path | None, str]) -> None:
    assert answers[None]
    assert answers[None] != answers[IMAGE]


@pytest.mark.parametrize("way", ["direct", "through Envoy"])
def test_a_scene_arrives_as_a_message(stack: Stack, way: str) -> None:
    target = stack.target if way == "direct" else f"127.0.0.1:{stack.http_port}"
    command = [sys.executable, str(EXAMPLES / "python/typed_answer.py"), str(IMAGE)]
    done = subprocess.run(
        command, env=os.environ | {"GLIMPSE_TARGET": target}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "large red circle, top left\nsmall green triangle, bottom right\n", done.stderr


@pytest.mark.parametrize("client", ["glimpse-python", "grpc-node"])
def test_grpc_examples_work_through_envoy(stack: Stack, answers: dict[Path | None, str], client: str) -> None:
    through_envoy = f"127.0.0.1:{stack.http_port}"
    assert answer(stack, client, image=IMAGE, stream=True, target=through_envoy) == answers[IMAGE]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_curl_prints_the_response(stack: Stack, answers: dict[Path | None, str], stream: bool) -> None:
    flags = ["--stream"] if stream else []
    done = run("curl", *flags, QUESTION, str(IMAGE), url=stack.openai_url, target="")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    if stream:
        assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    texts = [choice["delta"].get("content") if stream else choice["message"]["content"] for choice in choices]
    assert "".join(filter(None, texts)) + "\n" == answers[IMAGE]


def test_curl_prints_the_error_of_the_server(stack: Stack) -> None:
    done = run("curl", 'Say "a\\b"\nand more.', str(EXAMPLES / "README.md"), url=stack.openai_url, target="")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["error"]["param"].startswith("messages[0].content[0]")


@pytest.mark.parametrize("client", [*CLIENTS, "curl"])
def test_examples_name_an_image_that_they_cannot_read(client: str) -> None:
    done = run(client, QUESTION, "no/such.png", url="http://127.0.0.1:1/v1", target="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("cannot read no/such.png")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("client", [*CLIENTS, "curl"])
def test_examples_say_when_the_server_is_down(client: str) -> None:
    done = run(client, QUESTION, url="http://127.0.0.1:1/v1", target="127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no answer from ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
