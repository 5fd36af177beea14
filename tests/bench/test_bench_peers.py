"""How the benchmark's peers are started."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.serving.clients import OpenAIClient, Turn
from bench.serving.peers.llama_cpp import llama_cpp
from bench.serving.targets import parse_peer


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of llama.cpp's binaries and of GGUF files."""
    binaries, files = tmp_path / "bin", tmp_path / "gguf"
    binaries.mkdir()
    files.mkdir()
    (binaries / "llama-server").touch()
    for name in ("mid-BF16", "mid-Q8_0", "mid-mmproj"):
        (files / f"{name}.gguf").touch()
    return binaries, files


def test_llama_cpp_serves_the_weights_that_were_asked(folders: tuple[Path, Path]) -> None:
    binaries, files = folders
    target = llama_cpp(binaries, files, "Q8_0", num_threads=3)
    words = list(target.command)
    options = dict(zip(words[1:-1:2], words[2:-1:2], strict=True))
    assert words[0] == str(binaries / "llama-server")
    assert options["--model"] == str(files / "mid-Q8_0.gguf")
    assert options["--mmproj"] == str(files / "mid-mmproj.gguf")
    assert options["--threads"] == "3"
    assert target.url == f"http://{options['--host']}:{options['--port']}/v1"
    assert target.name == "llama.cpp Q8_0"


def test_weights_that_were_not_converted_are_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"expected one file \*-Q4_0\.gguf in .*, got 0"):
        llama_cpp(*folders, "Q4_0", num_threads=1)


def test_a_folder_without_llama_server_is_refused(folders: tuple[Path, Path]) -> None:
    _, files = folders
    with pytest.raises(ValueError, match="expected llama-server in"):
        llama_cpp(files, files, "BF16", num_threads=1)


def test_a_peer_is_told_the_checkpoint() -> None:
    target = parse_peer("vllm model@http://127.0.0.1:1/v1 serve {checkpoint} 1", Path("/checkpoint"))
    assert (target.name, target.model, target.url) == ("vllm", "model", "http://127.0.0.1:1/v1")
    assert target.command == ["serve", "/checkpoint", "1"]


def test_a_peer_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="a peer is NAME URL COMMAND"):
        parse_peer("vllm http://127.0.0.1:1/v1", Path("/checkpoint"))


async def test_a_request_is_sent_again_if_the_server_closed_the_idle_connection() -> None:
    num_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if num_connections > 1:
            chunk = {"choices": [{"delta": {"content": "red"}}], "usage": {"completion_tokens": 1}}
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ndata: " + json.dumps(chunk).encode() + b"\n\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, OpenAIClient(f"http://127.0.0.1:{port}/v1", model="model", ignore_eos=False) as client:
        answer = await client.ask([Turn(role="user", text="Which?")], max_tokens=1)
    assert (answer.text, answer.output_tokens, num_connections) == ("red", 1, 2)
