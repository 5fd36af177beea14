"""The command line from outside: what it prints, what it imports, how it refuses."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
from google.protobuf import json_format

from glimpse import __version__
from glimpse.engine.protocol.messages import Ready
from glimpse.server.cli.console import ready_text
from glimpse.server.cli.examples import usage_text
from glimpse.v1 import chat_pb2, embedding_pb2
from tests.e2e.stack import Served, children, free_ports
from tests.fork_server import glimpse
from tests.paths import ROOT
from tests.server.requests import png
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("forks")

READY = Ready(device="cpu", dtype="float32", max_model_len=4096, num_blocks=1, block_size=1, load_seconds=1.25)


def is_healthy(http_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def loaded(code: str, *arguments: str) -> set[str]:
    """The modules that a program has imported when it ends."""
    report = "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n"
    command = [sys.executable, "-c", report + code, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return set(result.stdout.splitlines()[-1].split())


TORCH = {"torch", "transformers"}
SERVER = TORCH | {"glimpse.engine", "glimpse.media", "glimpse.gateway", "huggingface_hub", "jinja2", "llguidance"} | {
    "aiohttp", "av", "numpy", "PIL", "pydantic", "structlog", "tokenizers", "uvloop"
}  # fmt: skip
GATEWAY = {"glimpse.gateway.config", "glimpse.gateway.run"}
"""What writes Envoy's configuration and runs it. The server knows the gateway's options."""
FLAGS = SERVER - {"glimpse.engine", "glimpse.media", "glimpse.gateway", "pydantic"} | GATEWAY


def test_importing_the_server_loads_no_torch_and_nothing_that_few_servers_need() -> None:
    unneeded = TORCH | GATEWAY | {"aiohttp", "av", "huggingface_hub", "jwt"}
    assert not loaded("import glimpse.server.cli.run_server") & unneeded


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (("--version",), SERVER | {"grpc"}),
        (("--help",), SERVER | {"grpc"}),
        (("chat", "Hello", "--target=127.0.0.1:1"), SERVER),
        (("up", "--help"), FLAGS),
        (("serve", "--max-model-len=0"), FLAGS),
        (("check", "--help"), FLAGS),
        (("run", "--help"), FLAGS),
        (("ps",), SERVER),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments: tuple[str, ...], unneeded: set[str]) -> None:
    assert not loaded("from glimpse.server.cli.main import main; main()", *arguments) & unneeded


def test_prints_the_package_version() -> None:
    assert glimpse("--version").stdout.strip() == __version__


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("--help",), ("run", "up", "check", "serve", "gateway", "chat", "Examples:")),
        (("up", "--help"), ("Examples:", "--model", "--http-port", "--help-all")),
        (("up", "--help-all"), ("--model", "--http-port", "GLIMPSE_ENCODER_CACHE_BYTES", "256.0MiB")),
        (("run", "--help"), ("Examples:", "--keep", "--image", "--quantization")),
        (("gateway", "--help"), ("glimpse gateway", "run", "config")),
        (("chat", "--help"), ("Examples:", "--image", "--video", "--target")),
    ],
)
def test_help_lists_commands_and_flags(command: tuple[str, ...], words: tuple[str, ...]) -> None:
    text = glimpse(*command).stdout
    assert all(word in text for word in words)
    assert "--help-all" in command or len(text.splitlines()) < 100


@pytest.mark.parametrize("flag", ["--port", "--metrics-port", "--http-port"])
def test_names_the_flag_of_a_port_in_use(flag: str, tiny_checkpoint: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"--port": 0, "--metrics-port": 0, "--http-port": 0} | {flag: taken.getsockname()[1]}
        flags = [f"{name}={port}" for name, port in ports.items()]
        result = glimpse("up", f"--model={tiny_checkpoint}", *flags)
    assert result.returncode == 1
    assert f"choose another with {flag}" in result.stderr
    assert "Traceback" not in result.stderr


def test_wrong_flags_have_an_exit_status_of_their_own() -> None:
    result = glimpse("serve", "--bogus")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("glimpse: Unknown option: --bogus.")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("modles", "did you mean `glimpse models`?"),
        ("rnu", "did you mean `glimpse run`?"),
        ("download", "`glimpse pull` downloads a model"),
        ("zzz", "`glimpse --help` lists the commands"),
    ],
)
def test_an_unknown_command_is_answered_with_the_one_that_is_meant(name: str, meant: str) -> None:
    result = glimpse(name)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"glimpse: there is no command '{name}'; {meant}")


@pytest.mark.parametrize(
    "flags", [("--api-keys",), ("--media-store=rediss://127.0.0.1:1", "--media-store-ca")], ids=["keys", "authorities"]
)
def test_a_file_that_cannot_be_used_is_a_wrong_flag(flags: tuple[str, ...], tmp_path: Path) -> None:
    *others, flag = flags
    file = tmp_path / "file"
    file.write_text("neither a hash nor a certificate\n")
    result = glimpse("serve", *others, f"{flag}={file}", "--port=0", "--metrics-port=0", "--no-spare-engine")
    assert (result.returncode, result.stdout, "Traceback" in result.stderr) == (2, "", False)
    assert f"'{flag}'" in result.stderr


def test_up_says_how_to_serve_with_tls(tmp_path: Path) -> None:
    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    for file in files:
        file.touch()
    result = glimpse("up", f"--tls-certificate={files[0]}", f"--tls-key={files[1]}")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("glimpse: '--tls-certificate': expected with `glimpse serve`")


def test_reports_a_missing_model_without_a_traceback() -> None:
    result = glimpse("serve", "--model=/nowhere/at/all")
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)
    assert "/nowhere/at/all" in result.stderr


def test_chat_streams_an_answer_about_an_image(shared_server: Served, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(png())
    target = f"--target=127.0.0.1:{shared_server.port}"
    result = glimpse("chat", "What is this?", f"--image={image}", target, "--max-tokens=5", "--temperature=0")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


def test_chat_reports_a_missing_image_and_a_missing_server(tmp_path: Path) -> None:
    missing = glimpse("chat", "?", f"--image={tmp_path / 'none.png'}")
    nobody = glimpse("chat", "?", "--target=127.0.0.1:1")
    assert (missing.returncode, nobody.returncode) == (1, 1)
    assert "none.png" in missing.stderr
    assert "glimpse up" in nobody.stderr


def test_says_that_weights_are_untrained() -> None:
    assert "random" in ready_text(READY, model="m", untrained=True)
    assert "random" not in ready_text(READY, model="m", untrained=False)


def test_says_that_the_context_is_cut() -> None:
    def lines(asked: int | None, **ready: int) -> list[str]:
        served = msgspec.structs.replace(READY, **ready)
        return ready_text(served, model="m", untrained=False, trained_len=8192, asked_len=asked).splitlines()[1:]

    assert lines(None, max_model_len=8192) == lines(4096, max_model_len=4096) == []
    assert lines(99999, max_model_len=8192) == [
        "'--max-model-len': expected at most 8192, the model's context, got 99999."
    ]
    assert lines(None, max_model_len=192, num_blocks=12, block_size=16) == [
        "The KV cache holds 192 tokens, the context was to have 8192: raise --kv-cache-bytes, about 43 times."
    ]
    assert lines(None, max_model_len=1792, num_blocks=1024, block_size=16) == [
        "A step computes a whole prompt, of at most 1792 tokens, the context was to have 8192:"
        " raise --max-batch-tokens."
    ]


def test_says_what_computes() -> None:
    native = msgspec.structs.replace(READY, dtype="bfloat16", backend="native", cpu_level="AVX-512", num_threads=2)
    assert "(bfloat16, native backend, AVX-512, 2 threads)" in ready_text(native, model="m", untrained=False)
    assert "(float32, torch backend)" in ready_text(READY, model="m", untrained=False)


def bodies(text: str) -> list[bytes]:
    """What the printed examples send: curl and grpcurl are functions that print their input, or what follows -d."""
    examples = [example for example in text.split("\n\n") if example.startswith(("(printf", "curl -N", "grpcurl -"))]
    body = 'if [ "${*#*-d @}" != "$*" ]; then cat; else while [ "$1" != -d ]; do shift; done; printf %s "$2"; fi;'
    shell = f"curl() {{ {body} }}; grpcurl() {{ {body} }}; "
    return [
        subprocess.run(["sh", "-c", shell + example], cwd=ROOT, capture_output=True, check=True).stdout
        for example in examples
    ]


def test_printed_examples_send_requests_with_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    text = usage_text(model="m", http_url="http://127.0.0.1:8080", target="127.0.0.1:50051")
    rest, typed = bodies(text)
    part = json.loads(rest)["messages"][0]["content"][1]
    assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    request = json_format.Parse(typed, chat_pb2.CreateChatCompletionRequest())
    assert request.messages[0].content[1].image.source.data.startswith(b"\x89PNG")


def test_text_models_get_examples_without_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    text = usage_text(model="m", http_url="http://127.0.0.1:8080", target="127.0.0.1:50051", reads_images=False)
    assert "image" not in text
    rest, typed = bodies(text)
    question = json.loads(rest)["messages"][0]["content"]
    request = json_format.Parse(typed, chat_pb2.CreateChatCompletionRequest())
    assert request.messages[0].content[0].text == question
    assert f'glimpse chat "{question}"' in text


def test_embedding_models_get_examples_of_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    url, target = "http://127.0.0.1:8080", "127.0.0.1:50051"
    text = usage_text(model="m", http_url=url, target=target, only_embeds=True)
    assert "chat" not in text.lower()
    typed = [example for example in text.split("\n\n") if example.startswith("grpcurl -")]
    (body,) = bodies(typed[0])
    request = json_format.Parse(body, embedding_pb2.CreateEmbeddingsRequest())
    assert f'-d \'{{"input": "{request.inputs[0].text}"}}\'' in text
    secured = usage_text(
        model="m", http_url=url, target=target, only_embeds=True, uses_tls=True, needs_certificate=True, needs_key=True
    )
    own = 'certificate="CLIENT.pem", key="CLIENT.key"'
    assert f'Client("127.0.0.1:50051", tls=Tls(ca="CA.pem", {own}), api_key="KEY")' in secured
    assert f'client.embed(["{request.inputs[0].text}"])' in text
    for program in re.findall(r"<<'END'\n(.*?)END", text + secured, re.DOTALL):
        compile(program, "example", "exec")


def test_prints_only_examples_whose_programs_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("glimpse.server.cli.examples.find_spec", lambda _: None)
    text = usage_text(model="m", http_url="http://127.0.0.1:8080", target="127.0.0.1:6000")
    assert "glimpse chat" in text
    *_, command, apis = text.split("\n\n")
    assert command.endswith("--target 127.0.0.1:6000")
    assert apis.endswith("http://127.0.0.1:8080/docs")
    assert not any(name in text for name in ("curl", "openai"))


def test_prints_what_clients_of_a_server_with_tls_need() -> None:
    text = usage_text(model="m", http_url=None, target="127.0.0.1:6000", uses_tls=True)
    assert text.endswith("--target 127.0.0.1:6000 --tls-ca CA.pem")
    text = usage_text(model="m", http_url=None, target="127.0.0.1:6000", uses_tls=True, needs_certificate=True)
    title, command = text.split("\n\n")
    assert "CLIENT.pem is your certificate, CLIENT.key is its private key" in title
    assert command.endswith("--tls-ca CA.pem --tls-certificate CLIENT.pem --tls-key CLIENT.key")


def test_prints_what_clients_need_that_must_have_a_key() -> None:
    text = usage_text(model="m", http_url="http://127.0.0.1:8080", target="127.0.0.1:50051", needs_key=True)
    title, command = text.split("\n\n")
    assert "KEY is an API key" in title
    assert command.startswith("GLIMPSE_API_KEY=KEY ")


def test_ctrl_c_while_loading_prints_no_traceback(tiny_checkpoint: Path) -> None:
    command = [sys.executable, "-m", "glimpse", "serve", f"--model={tiny_checkpoint}", "--port=0", "--metrics-port=0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(json.loads(line)["event"] == "loading" for line in process.stderr), "it loads"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert all(json.loads(line)["event"] for line in errors.splitlines()), "one format, and no traceback"


def test_refuses_a_port_that_two_flags_name() -> None:
    result = glimpse("up", "--http-port=5001", "--metrics-port=5001")
    assert (result.returncode, result.stdout) == (2, "")
    assert "'--http-port': expected a port of its own, got 5001, which --metrics-port has" in result.stderr


def test_says_that_too_few_files_may_be_open() -> None:
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-m", "glimpse", "serve"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("glimpse: expected a limit of at least 256 open files, got 64; raise it")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["ps", "--help", "gateway --help"])
def test_a_command_whose_output_finds_no_room_says_so(command: str, unbuffered: str) -> None:
    variables = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "glimpse", *command.split()],
            cwd=ROOT,
            env=variables,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    program = "glimpse gateway" if "gateway" in command else "glimpse"
    assert (done.returncode, done.stderr) == (1, f"{program}: cannot write the output: No space left on device\n")


def test_a_command_whose_reader_has_left_ends_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "glimpse", "ps"]
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_serves_without_standard_streams_and_stops_when_the_gateway_dies(tiny_checkpoint: Path) -> None:
    http_port, port, metrics_port = free_ports(3)
    flags = [f"--http-port={http_port}", f"--port={port}", f"--metrics-port={metrics_port}"]
    without = 'exec "$@" <&- >/dev/full'  # no input, and a disk without room for output
    command = ["sh", "-c", without, "sh", sys.executable, "-m", "glimpse", "up", f"--model={tiny_checkpoint}", *flags]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: is_healthy(http_port) or process.poll() is not None)
        (gateway,) = children(process.pid, "gateway run")
        os.kill(gateway, signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the gateway (Envoy) ended" in errors
