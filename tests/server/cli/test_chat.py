"""`glimpse chat`: questions from arguments and standard input, files, URLs and targets."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Served
from tests.engine.replies import reply_with
from tests.fork_server import glimpse
from tests.paths import ROOT
from tests.server.requests import png
from tests.server.serving import echoing

SHORT = ("--max-tokens=5", "--temperature=0")


def chat(*arguments: str, question: str = "", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; `question` is the standard input."""
    done = glimpse("chat", *arguments, standard_input=question, environment=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def target(shared_server: Served) -> str:
    return f"--target=127.0.0.1:{shared_server.port}"


@pytest.fixture
def images(tmp_path: Path) -> tuple[str, str]:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, colour in zip(paths, [(200, 30, 40), (10, 90, 200)], strict=True):
        path.write_bytes(png(colour=colour))
    return str(paths[0]), str(paths[1])


def test_reads_the_question_from_standard_input(target: str) -> None:
    answer = chat("Hello", target, *SHORT)
    assert answer == chat("-", target, *SHORT, question="Hello")
    assert answer == chat(target, *SHORT, question="Hello")
    assert answer[0] == 0


def test_sends_a_system_message_and_the_name_of_the_model(target: str) -> None:
    assert chat("Hello", target, *SHORT) != chat("Hello", target, "--system=Obey.", *SHORT)
    variables = {"GLIMPSE_MODEL": "/a/checkpoint"}  # the server's
    assert chat("Hello", target, "--model=small/tiny", *SHORT, environment=variables)[0] == 0
    assert "'none' does not exist" in chat("Hello", target, "--model=none", *SHORT)[2]


async def test_prints_json_that_matches_a_schema(tiny_checkpoint: Path, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    async with echoing(tiny_checkpoint) as (server, _):
        target = f"--target=http://127.0.0.1:{server.port}/v1"
        whole = await asyncio.to_thread(chat, reply_with('{"a": 1}'), f"--json={json.dumps(schema)}", target)
        cut = await asyncio.to_thread(chat, reply_with('{"a": 1}'), f"--json={file}", "--max-tokens=4", target)
    assert whole == (0, '{"a": 1}\n', "")
    assert cut[:2] == (1, "")
    assert "the answer is no complete JSON; it reached the limit of its tokens: raise --max-tokens" in cut[2]


def test_accepts_several_images_in_each_form(target: str, images: tuple[str, str]) -> None:
    a, b = images
    answer = chat("What?", f"--image={a}", f"--image={b}", target, *SHORT)
    assert answer[0] == 0
    assert answer == chat("What?", "--image", a, b, target, *SHORT)
    assert answer == chat("What?", a, b, target, *SHORT)
    assert answer == chat("--image", a, "What?", b, target, *SHORT)


def test_sends_urls_as_they_are(target: str) -> None:
    status, _, errors = chat("What?", "--image", "https://127.0.0.1/a.png", target, *SHORT)
    assert status == 1
    assert errors.startswith("glimpse: https://127.0.0.1/a.png: ")


def test_port_comes_from_the_environment(shared_server: Served, target: str) -> None:
    assert chat("Hello", *SHORT, environment={"GLIMPSE_PORT": str(shared_server.port)}) == chat("Hello", target, *SHORT)


async def test_shows_the_reasoning_apart_from_the_answer(tiny_checkpoint: Path) -> None:
    question = reply_with("<think>\nSo ä.\n</think>\n\nYes.")
    async with echoing(tiny_checkpoint, reasoning_parser="qwen3") as (server, _):
        answer = await asyncio.to_thread(chat, question, f"--target=127.0.0.1:{server.port}")
    assert answer == (0, "Yes.\n", "So ä.\n\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Hello", "--target=localhost"), "'--target': expected HOST:PORT or a URL, got 'localhost'"),
        (("what", "is", "this"), "'QUESTION': expected one text, got 3; use quotes: glimpse chat 'what is this'"),
        (
            ("Hello", "--json=none.json"),
            "'--json': expected a JSON Schema or a file with one, got 'none.json': No such",
        ),
        (("Hello", "--json=[1]"), "'--json': expected a JSON Schema or a file with one"),
        (("-",), "'QUESTION': expected a text, got an empty standard input"),
        (("--temprature=0", "Hello"), "unknown option --temprature=0; did you mean --temperature?"),
        (("Hello", "--port=many"), "'--port': expected an integer, got 'many'"),
    ],
)
def test_wrong_use_has_exit_status_2(arguments: tuple[str, ...], message: str) -> None:
    status, output, errors = chat(*arguments)
    assert (status, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--image", "a.png", "b.png", "What is it?"), "cannot read a.png: No such file"),
        (("a.png", "What is it?"), "cannot read a.png: No such file"),
        (("Hello", "--tls-ca=/none"), "cannot read /none: No such file"),
        (("Hello", "--tls-certificate=a.pem"), "'tls.key': expected a file, got None"),
    ],
)
def test_explains_failures(arguments: tuple[str, ...], message: str) -> None:
    status, output, errors = chat(*arguments)
    assert (status, output) == (1, "")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_question_in_another_encoding_is_refused(locale: str) -> None:
    command = (sys.executable, "-m", "glimpse", "chat")
    variables = os.environ | {"LC_ALL": locale}
    done = subprocess.run(command, cwd=ROOT, input=b"caf\xe9", capture_output=True, env=variables, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"'QUESTION': expected a text in UTF-8 in standard input" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this file")
def test_an_answer_that_cannot_be_written_is_said_to_be_that(target: str) -> None:
    command = (sys.executable, "-m", "glimpse", "chat", "Hello", target, *SHORT)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "glimpse: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-"])
def test_a_closed_standard_stream_is_as_an_empty_one(target: str, closed: str) -> None:
    command = (
        "sh",
        "-c",
        f'exec "$@" {closed}',
        "sh",
        sys.executable,
        "-m",
        "glimpse",
        "chat",
        "Hello",
        target,
        *SHORT,
    )
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed != ">&-")


def test_refuses_an_unknown_kind_of_media(target: str, tmp_path: Path) -> None:
    video = tmp_path / "a.mp4"
    video.write_bytes(b"no video")
    status, _, errors = chat("What?", str(video), target)
    assert status == 1
    assert errors.startswith(f"glimpse: {video}: ")


def test_a_refused_value_is_named_by_its_flag(target: str) -> None:
    status, _, errors = chat("Hello", "--temperature=9", target)
    assert (status, errors.startswith("glimpse: '--temperature': expected ")) == (1, True)
