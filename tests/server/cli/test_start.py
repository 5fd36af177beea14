"""`glimpse up` at a terminal, from the download of the model on."""

import re
import socket
from pathlib import Path

from tests.server.cli.hub import serve_hub
from tests.server.cli.terminal import glimpse

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def test_the_log_stays_out_of_the_progress_bar_and_free_ports_are_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--model=org/name", "--http-port=0", "--port=0", "--metrics-port=0", "--no-spare-engine")
    with serve_hub({"org/name": tiny_checkpoint}) as hub, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
        }
        with glimpse("up", *flags, environment=environment) as terminal:
            terminal.shows("Serving org/name")
            terminal.shows("--target 127.0.0.1:")
            assert manager.recv(1024) == b"READY=1\nSTATUS=serving org/name"
            terminal.type("\x03")
            assert terminal.process.wait(timeout=60) == 0
    assert "importing torch" in terminal.text()
    lines = [line.removeprefix("^C") for line in terminal.lines()]
    logged = [line for line in lines if LOG_LINE.search(line)]
    assert any("[engine]" in line for line in logged), "the engine's own lines"
    assert all(LOG_LINE.match(line) for line in logged), "each begins its line"
    assert not [line for line in logged if not re.match(r"\S+ \[(debug|info|warning|error) *\]", line)], "one spelling"
    assert not [words for words in ("HTTP Request", "Traceback") if words in terminal.text()]
    assert re.search(r"--target 127.0.0.1:[1-9]\d+$", terminal.text(), re.MULTILINE)
