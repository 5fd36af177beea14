"""The installed wheel: what is in it, and that it serves from an empty folder without the repository."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2
from tests.e2e.stack import Stack, start_stack
from tests.engine.levels import needs_kernels
from tests.paths import ROOT
from tests.waiting import eventually
from tests.wheel.conftest import Installed

QUESTION = "What is in this image?"
TRUTH = {"red", "circle", "green", "triangle"}
"""The example shows a red circle and a green triangle."""

CLIENT = """
import sys
from glimpse import Client
from glimpse.client import Image
with Client(sys.argv[1]) as client:
    print(client.chat([Image(sys.argv[2]), sys.argv[3]], temperature=0, max_completion_tokens=64).text)
"""
OFFLINE = """
import sys
import PIL.Image
from glimpse import LLM, SamplingParams
image = {"type": "image_pil", "image_pil": PIL.Image.open(sys.argv[1])}
messages = [{"role": "user", "content": [image, {"type": "text", "text": sys.argv[2]}]}]
print(LLM().chat(messages, SamplingParams(temperature=0, max_tokens=64))[0].outputs[0].text)
"""


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


@pytest.fixture(scope="module")
def example(installed: Installed) -> Path:
    """The package's example image."""
    return installed.packages / "glimpse" / "example.png"


@pytest.fixture(scope="module")
def running(installed: Installed) -> Iterator[Stack]:
    """`glimpse up` of the wheel, in an empty folder."""
    stack = start_stack(
        installed.folder,
        glimpse=installed.python.with_name("glimpse"),
        environment=installed.environment,
        working_directory=installed.folder,
    )
    yield stack
    assert stack.stop() == 0


def test_has_one_top_level_package(installed: Installed) -> None:
    names = {path.name for path in installed.packages.iterdir()} - {"dependencies.pth"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"glimpse"}
    assert len(names) == 2


def test_has_its_data(installed: Installed) -> None:
    package = installed.packages / "glimpse"
    files = {str(path.relative_to(package)) for path in package.rglob("*.*")}
    assert files >= {
        "py.typed",
        "example.png",
        "nano/model.safetensors",
        "nano/config.json",
        "nano/tokenizer.json",
        "gateway/envoy.template.yaml",
        "gateway/errors.lua",
        "gateway/requests.lua",
        "gateway/openapi.json",
        "gateway/openapi_typed.json",
        "gateway/page/dist/index.html",
        "gateway/page/dist/docs.html",
        "gateway/page/dist/licenses.txt",
        "engine/worker/native/attention.cpp",
        "engine/worker/native/kernels.h",
        "media/native/resize.cpp",
        "media/native/kernels.h",
        "v1/chat_pb2.pyi",
        "openai/v1/openai_pb2.pyi",
        "client/client.py",
        "server/cli/local/published.json",
    }


def test_has_every_kernel_source_and_type_stub(installed: Installed) -> None:
    package = installed.packages / "glimpse"
    for folder, patterns in (
        ("engine/benchmark/units", ("*.cpp",)),
        ("engine/worker/native", ("*.cpp", "*.h")),
        ("media/native", ("*.cpp", "*.h")),
        ("media/shared", ("*.lua",)),
        ("v1", ("*.pyi",)),
    ):
        for pattern in patterns:
            expected = {path.name for path in (ROOT / "src" / "glimpse" / folder).glob(pattern)}
            assert {path.name for path in (package / folder).glob(pattern)} == expected


def test_imports_nothing_from_the_repository(installed: Installed) -> None:
    code = "import glimpse, glimpse.client, glimpse.server.cli.app, glimpse.offline.llm, sys\n"
    code += (
        "print('\\n'.join(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'glimpse' and m.__file__))"
    )
    files = installed.run(str(installed.python), "-c", code).splitlines()
    assert str(installed.packages / "glimpse" / "__init__.py") in files
    assert all(Path(file).is_relative_to(installed.packages) for file in files)


NATIVE = """
import os
os.environ |= {"PATH": "", "XDG_CACHE_HOME": os.getcwd()}
from glimpse.engine.worker.native.library import machine_levels
from glimpse.media.native.library import native_resizer
print(bool(machine_levels()), native_resizer() is not None, os.listdir())
"""


@needs_kernels
def test_has_kernels_that_need_no_compiler(installed: Installed, tmp_path: Path) -> None:
    alone = replace(installed, folder=tmp_path)
    assert alone.run(str(alone.python), "-c", NATIVE) == "True True []\n"


def test_printed_commands_answer_truly(installed: Installed, running: Stack) -> None:
    log = installed.folder / "glimpse.log"
    assert eventually(lambda: "glimpse chat" in log.read_text())
    text = log.read_text()
    commands = [part for part in text.split("\n\n") if part.startswith(("glimpse chat", "(printf"))]
    assert commands[0].startswith("glimpse chat")
    assert words(installed.run("sh", "-c", commands[0])) >= TRUTH
    for command in commands[1:]:
        assert words(installed.run("sh", "-c", command)) >= TRUTH


def test_answers_over_rest(running: Stack, example: Path) -> None:
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(example.read_bytes()).decode()},
    }
    messages = [{"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}]
    answer = running.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 64})
    assert words(answer["choices"][0]["message"]["content"]) >= TRUTH


def test_answers_over_grpc(running: Stack, example: Path) -> None:
    image = content_pb2.ImagePart(source=content_pb2.MediaSource(data=example.read_bytes()))
    content = [content_pb2.ContentPart(image=image), content_pb2.ContentPart(text=QUESTION)]
    request = chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=content)],
        generation={"temperature": 0, "max_completion_tokens": 64},
    )
    with grpc.insecure_channel(running.target) as channel:
        answer = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(request)
    assert words(answer.choices[0].message.content) >= TRUTH


def test_answers_the_installed_client(installed: Installed, running: Stack, example: Path) -> None:
    answer = installed.run(str(installed.python), "-c", CLIENT, running.target, str(example), QUESTION)
    assert words(answer) >= TRUTH


def test_answers_offline(installed: Installed, example: Path) -> None:
    assert words(installed.run(str(installed.python), "-c", OFFLINE, str(example), QUESTION)) >= TRUTH
