"""The example client in TypeScript, made with connect-es and stubs from the protos, in each protocol that it speaks."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glimpse.client import Client, Image
from tests.e2e.node import NODE
from tests.e2e.stack import ROOT, Stack
from tests.waiting import eventually

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


@pytest.fixture(params=["connect", "connect-json", "grpc-web", "grpc"])
def ask(request: pytest.FixtureRequest, program: Path, stack: Stack) -> Ask:
    def run(
        *flags: str, image: Path = IMAGE, target: str = f"127.0.0.1:{stack.http_port}"
    ) -> subprocess.CompletedProcess[str]:
        command = [NODE, program, f"--target={target}", f"--protocol={request.param}", *flags, QUESTION, image]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


def test_a_unary_call_needs_no_client(stack: Stack) -> None:
    message = {"role": "ROLE_USER", "content": [{"text": QUESTION}]}
    request = {"messages": [message], "generation": {"temperature": 0, "maxCompletionTokens": 8}}
    result = stack.post("/glimpse.v1.ChatService/CreateChatCompletion", request)
    with Client(stack.target) as client:
        expected = client.chat([QUESTION], temperature=0, max_completion_tokens=8)
    assert result["choices"][0]["message"]["content"] == expected.text
    assert result["usage"]["completionTokens"] == 8


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"nonsense": 1}, 'has no field named "nonsense"'),
        ({"messages": 1}, "repeated field messages must be in []"),
        ("[" * 10_000, "recursion"),
    ],
)
def test_json_that_is_no_message_is_refused(stack: Stack, request_: Any, reason: str) -> None:
    body = request_ if isinstance(request_, str) else json.dumps(request_)
    url = f"{stack.url}/glimpse.v1.ChatService/CountTokens"
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as raised, urllib.request.urlopen(request, timeout=60):
        pass
    error = json.load(raised.value)
    assert (raised.value.code, error["code"]) == (400, "invalid_argument")
    assert reason in error["message"]


def test_a_deadline_of_connect_reaches_the_server(stack: Stack) -> None:
    message = {"role": "ROLE_USER", "content": [{"text": QUESTION}]}
    request = {"messages": [message], "generation": {"minTokens": 2000, "maxCompletionTokens": 2000}}
    headers = {"content-type": "application/json", "connect-timeout-ms": "200"}
    url = f"{stack.url}/glimpse.v1.ChatService/CreateChatCompletion"
    with (
        pytest.raises(urllib.error.HTTPError) as raised,
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(request).encode(), headers), timeout=60),
    ):
        pass
    assert json.load(raised.value)["code"] == "deadline_exceeded"


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
    assert eventually(lambda: stack.metric("glimpse_running_sequences") == 0)


def test_deadline_ends_the_call(ask: Ask) -> None:
    result = ask("--deadline=0.001")
    assert (result.returncode, result.stderr.partition(":")[0]) == (1, "DeadlineExceeded")


def test_says_when_the_server_is_down(ask: Ask) -> None:
    result = ask(target="127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("no answer from 127.0.0.1:1: ")
    assert len(result.stderr.splitlines()) == 2


def test_names_an_image_that_it_cannot_read(ask: Ask) -> None:
    result = ask(image=Path("no/such.png"))
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "cannot read no/such.png\n")


def test_reads_the_details_of_an_error(ask: Ask) -> None:
    result = ask(image=ROOT / "examples" / "README.md")
    status, *details = result.stderr.splitlines()
    assert (result.returncode, status.partition(":")[0]) == (1, "InvalidArgument")
    assert details == ["reason: UNSUPPORTED_MEDIA_FORMAT", "field: messages[0].content[0].image.source"]
