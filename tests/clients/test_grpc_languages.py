"""The example clients in Go, Java and C++, built from the protos with Debian's packages: direct and through Envoy."""

import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from glimpse.client import Client, Image
from tests.e2e.stack import ROOT, Stack
from tests.waiting import eventually

QUESTION = "What is in this image?"
IMAGE = ROOT / "examples" / "image.png"
PACKAGES = {
    "go": "protobuf-compiler protoc-gen-go protoc-gen-go-grpc golang-go golang-google-grpc-dev"
    " golang-google-genproto-dev golang-google-protobuf-dev golang-github-golang-protobuf-1-5-dev",
    "java": "protobuf-compiler libprotobuf-dev protobuf-compiler-grpc-java-plugin openjdk-17-jdk-headless"
    " libgrpc-java libprotobuf-java libnetty-java libgoogle-gson-java libguava-java"
    " libgeronimo-annotation-1.3-spec-java libperfmark-java",
    "cpp": "protobuf-compiler libprotobuf-dev protobuf-compiler-grpc g++ libgrpc++-dev",
}
NEEDED = {
    "go": ("go", "protoc-gen-go-grpc", "/usr/share/gocode/src/github.com/golang/protobuf/proto/registry.go"),
    "java": ("javac", "grpc_java_plugin", "/usr/share/java/perfmark-api.jar", "/usr/share/java/grpc-netty.jar"),
    "cpp": ("g++", "grpc_cpp_plugin", "/usr/include/grpcpp/grpcpp.h"),
}
PROTOC = ("protoc", "/usr/include/google/protobuf/descriptor.proto")
"""The compiler only recommends the package with the protos of protobuf's own types, libprotobuf-dev."""
STATUSES = {
    "go": {"CANCELLED": "Canceled", "INVALID_ARGUMENT": "InvalidArgument", "DEADLINE_EXCEEDED": "DeadlineExceeded"},
    "java": {},
    "cpp": {"CANCELLED": "status 1", "INVALID_ARGUMENT": "status 3", "DEADLINE_EXCEEDED": "status 4"},
}
"""How the programs name a status, where not by its name."""

Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds each program on first use."""

    @functools.cache
    def built(language: str) -> Path:
        if not all(shutil.which(name) or Path(name).exists() for name in (*NEEDED[language], *PROTOC)):
            pytest.skip(f"apt-get install {PACKAGES[language]}")
        folder = tmp_path_factory.mktemp(language)
        command = [str(ROOT / "examples" / "build.sh"), language, str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return folder / "ask"

    return built


@pytest.fixture(params=PACKAGES)
def language(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(language: str, build: Callable[[str], Path], stack: Stack) -> Ask:
    def run(*flags: str, image: Path = IMAGE, target: str = stack.target) -> subprocess.CompletedProcess[str]:
        command = [str(build(language)), f"--target={target}", *flags, QUESTION, str(image)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


def answer(stack: Stack) -> str:
    with Client(stack.target) as client:
        return client.chat([Image(IMAGE), QUESTION], temperature=0, max_completion_tokens=64).text


def test_streams_an_answer_about_an_image(ask: Ask, stack: Stack) -> None:
    expected = answer(stack) + "\n"
    for target in (stack.target, f"127.0.0.1:{stack.http_port}"):
        result = ask(target=target)
        assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


def test_cancels_a_stream(ask: Ask, language: str, stack: Stack) -> None:
    result = ask("--cancel-after=2")
    assert result.returncode == 1
    assert result.stderr.startswith(STATUSES[language].get("CANCELLED", "CANCELLED"))
    assert result.stdout.strip()
    assert answer(stack).startswith(result.stdout.removesuffix("\n"))
    assert eventually(lambda: stack.metric("glimpse_running_sequences") == 0)


def test_deadline_ends_the_call(ask: Ask, language: str) -> None:
    result = ask(f"--deadline={'1ms' if language == 'go' else '0.001'}")
    assert result.returncode == 1
    assert result.stderr.startswith(STATUSES[language].get("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"))


def test_says_when_the_server_is_down(ask: Ask) -> None:
    result = ask(target="127.0.0.1:1")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("no answer from 127.0.0.1:1: ")
    assert len(result.stderr.splitlines()) == 2


def test_names_an_image_that_it_cannot_read(ask: Ask) -> None:
    result = ask(image=Path("no/such.png"))
    assert (result.returncode, result.stdout) == (2, "")
    assert "no/such.png" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_reads_the_details_of_an_error(ask: Ask, language: str) -> None:
    result = ask(image=ROOT / "examples" / "README.md")
    assert result.returncode == 1
    status, *details = result.stderr.splitlines()
    assert status.startswith(STATUSES[language].get("INVALID_ARGUMENT", "INVALID_ARGUMENT"))
    assert any(line.startswith("reason: ") and line != "reason: " for line in details)
    assert "field: messages[0].content[0].image.source" in details
