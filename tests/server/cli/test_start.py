"""`glimpse serve` at a terminal, from the download of its model on."""

import re
from pathlib import Path

from tests.server.cli.hub import serve_hub
from tests.server.cli.terminal import glimpse

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def test_the_log_stays_out_of_the_progress_bar_and_free_ports_are_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--model=org/name", "--port=0", "--metrics-port=0", "--no-spare-engine")
    with serve_hub({"org/name": tiny_checkpoint}) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        with glimpse("serve", *flags, environment=environment) as terminal:
            terminal.shows("Serving org/name")
            terminal.type("\x03")
            assert terminal.process.wait(timeout=60) == 0
    assert "importing torch" in terminal.text()
    logged = [line for line in terminal.lines() if LOG_LINE.search(line)]
    assert any("[engine]" in line for line in logged), "the engine's own lines"
    assert all(LOG_LINE.match(line) for line in logged), "each begins its line"
    assert not [line for line in logged if not re.match(r"\S+ \[(debug|info|warning|error) *\]", line)], "one spelling"
    assert "HTTP Request" not in terminal.text()
    assert re.search(r"--target 127.0.0.1:[1-9]\d+$", terminal.text(), re.MULTILINE)
