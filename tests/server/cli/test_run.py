"""`glimpse run`, and the commands for models on this disk and servers of this machine."""

import hashlib
import io
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from huggingface_hub import constants

from glimpse.engine.checkpoint.location import DEFAULT_MODEL, resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from glimpse.server.cli.app import app
from glimpse.server.cli.local.top import MetricsSample, row
from glimpse.usage import UsageError
from tests import fork_server
from tests.e2e.stack import children
from tests.paths import ROOT
from tests.server.cli.hub import Hub, serve_hub
from tests.server.cli.terminal import Terminal, glimpse
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("forks")

QUESTION = "What is in this image?"
IMAGE = "examples/image.png"
WEIGHTS = DEFAULT_MODEL / "model.safetensors"


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with the embedded model."""
    with serve_hub({"org/name": DEFAULT_MODEL}) as running:
        yield running


@pytest.fixture(autouse=True)
def user(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user who has nothing yet, and the user's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, value in (("HF_ENDPOINT", hub.url), ("HF_HUB_CACHE", str(tmp_path / "hub")), ("HF_HUB_OFFLINE", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield tmp_path
    if here("ps", "--json") != "[]\n":  # after a failure
        here("stop", "--all")


def here(*arguments: str) -> str:
    """What the command prints, run in this process."""
    with redirect_stdout(io.StringIO()) as output:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    return output.getvalue()


def test_a_model_of_the_hub_is_downloaded_served_and_kept(
    hub: Hub, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_server.without_forks(monkeypatch)  # forks share their memory
    answer = fork_server.glimpse("run", "org/name", QUESTION, IMAGE, "--keep", "--temperature=0")
    assert answer.returncode == 0, answer.stderr
    assert "circle" in answer.stdout
    assert "loading" not in answer.stdout
    weights = WEIGHTS.stat().st_size
    assert weights <= hub.sent_bytes[WEIGHTS.name] < 1.1 * weights  # once; the check reads its header
    (server,) = json.loads(here("ps", "--json"))
    assert (server["names"], server["http_url"]) == (["org/name"], None)
    assert server["memory_bytes"] > 100 << 20
    with glimpse("run", "org/name", environment={}, columns=100, rows=40) as terminal:
        talk_with_kept(terminal, user)
    assert here("ps").splitlines()[1].split()[:2] == ["org/name", str(server["pid"])]
    with pytest.raises(SystemExit, match="end it first"):
        here("rm", "org/name")
    with pytest.raises(UsageError, match="with the flags of its own start"):
        here("run", "org/name", "?", "--max-model-len=512")
    assert here("top", "--once", "--interval=0.1").splitlines()[1].startswith(f"org/name {server['target']}")
    assert here("stop", "org/name") == f"ended org/name (process {server['pid']})\n"
    assert json.loads(here("ps", "--json")) == []
    name, _, rest = here("list").splitlines()[1].partition(" ")
    assert (name, "complete" in rest) == ("org/name", True)
    assert here("rm", "org/name") == "removed org/name\n"
    assert len(here("list").splitlines()) == 1


def test_a_kept_server_that_cannot_be_listed_says_how_it_ends(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (user / "state").write_text("not a folder")
    answer = fork_server.glimpse("run", str(DEFAULT_MODEL), QUESTION, IMAGE, "--keep", "--port=0", "--metrics-port=0")
    assert answer.returncode == 0, answer.stderr
    said = re.search(r"cannot be written; `kill (\d+)` ends it", answer.stderr)
    assert said is not None, answer.stderr
    os.kill(int(said[1]), signal.SIGTERM)


def talk_with_kept(terminal: Terminal, folder: Path) -> None:
    """What a person types who finds a server that runs."""
    terminal.shows("org/name is served by process")
    terminal.shows("understands text, image")
    terminal.type(f"{QUESTION} {IMAGE}\r")
    terminal.shows("tokens in")
    broken = folder / "broken.png"
    broken.write_bytes((ROOT / IMAGE).read_bytes()[:60])
    terminal.type(f"What is in {broken}?\r")
    terminal.shows("The next question is not about this file.")
    assert "content[" not in terminal.text()
    terminal.resize(50, 30)
    terminal.type("/?\r")
    terminal.shows("Ctrl-D the conversation.")
    assert all(len(line) <= 50 for line in terminal.lines())
    terminal.type("/model\r")
    terminal.shows("* org/name")
    terminal.type("/bye\r")
    assert terminal.process.wait(timeout=60) == 0


def test_a_model_that_is_here_does_not_wait_for_the_hub(hub: Hub) -> None:
    folder = resolve_checkpoint("org/name")
    hub.is_down = True
    assert resolve_checkpoint("org/name") == folder
    assert 0 < hub.num_refused <= 2, "nothing is asked again"


def test_bye_ends_the_server_that_was_started(user: Path, tiny_checkpoint: Path) -> None:
    with glimpse("run", str(tiny_checkpoint), "--max-tokens=4", environment={}) as terminal:
        terminal.shows("understands text, image")
        (server,) = json.loads(here("ps", "--json"))
        assert server["folder"] == str(tiny_checkpoint)
        terminal.type("Hello\r")
        terminal.shows("4 tokens in")
        terminal.type("/bye\r")
        assert terminal.process.wait(timeout=60) == 0
    assert not Path(f"/proc/{server['pid']}").exists()
    assert not [*(user / "state" / "glimpse" / "servers").iterdir()]


def test_ctrl_c_while_it_starts_ends_everything(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_server.without_forks(monkeypatch)
    with glimpse("run", str(tiny_checkpoint), environment={}) as terminal:
        terminal.shows("importing torch")
        started = children(terminal.process.pid, "glimpse")
        assert started
        terminal.type("\x03")
        assert terminal.process.wait(timeout=60) == 130
        assert "Traceback" not in terminal.text()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_download_goes_on_where_it_was(hub: Hub, user: Path, is_damaged: bool) -> None:
    weights = WEIGHTS.read_bytes()
    half = len(weights) // 2
    part = user / "hub" / "models--org--name" / "blobs" / f"{hashlib.sha256(weights).hexdigest()}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(half) if is_damaged else weights[:half])
    if is_damaged:
        with pytest.raises(CheckpointError, match="is damaged, and was removed; the same command goes on"):
            resolve_checkpoint("org/name")
    else:
        assert (resolve_checkpoint("org/name") / WEIGHTS.name).read_bytes() == weights
    assert hub.sent_bytes[WEIGHTS.name] == len(weights) - half
    assert not part.exists()


def test_a_download_that_the_disk_cannot_hold_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"the disk of the cache has 0\.0 GiB; HF_HUB_CACHE names another folder"):
        resolve_checkpoint("org/name")
    assert not hub.sent_bytes[WEIGHTS.name]


def test_stop_and_rm_say_what_they_cannot_do() -> None:
    with pytest.raises(SystemExit, match="no server of this machine serves org/other"):
        here("stop", "org/other")
    with pytest.raises(UsageError, match="or --all"):
        here("stop")
    with pytest.raises(SystemExit, match="`glimpse list` shows what is"):
        here("rm", "org/other")


def test_rates_are_those_of_an_interval() -> None:
    before = {
        "glimpse_engine_ready": 1.0,
        "glimpse_generated_tokens_total": 100.0,
        "glimpse_time_to_first_token_seconds_sum": 1.0,
        "glimpse_time_to_first_token_seconds_count": 2.0,
    }
    after = before | {
        "glimpse_running_sequences": 3.0,
        "glimpse_generated_tokens_total": 150.0,
        "glimpse_time_to_first_token_seconds_sum": 1.5,
        "glimpse_time_to_first_token_seconds_count": 4.0,
        "glimpse_kv_blocks": 10.0,
        "glimpse_kv_blocks_used": 5.0,
    }
    now = time.monotonic()
    shown = row(MetricsSample(seconds=now, values=before), MetricsSample(seconds=now + 2, values=after, memory=2 << 30))
    assert shown == ["3", "0", "25", "0", "250 ms", "50 %", "–", "–", "2.0 GiB"]
    gone = row(MetricsSample(seconds=now, values=after), MetricsSample(seconds=now + 2, values={}))
    assert set(gone) == {"–"}
    assert len(gone) == len(shown)
