"""Resolution of checkpoints: folders, repository ids of the Hugging Face hub, and errors for anything else."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from glimpse.engine.checkpoint.location import DEFAULT_MODEL, UNTRAINED_MARK, is_untrained, resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from tests.server.cli.hub import serve_hub


def test_folder_with_config_is_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_checkpoint(str(tmp_path)) == tmp_path.resolve()


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        resolve_checkpoint(str(tmp_path))


@pytest.mark.parametrize("model", ["nowhere", "/no/such/folder", "a b/c", ""])
def test_refuses_neither_folder_nor_repository_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError):
        resolve_checkpoint(model)


RESOLVE = """
import sys
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.errors import CheckpointError
try:
    print(resolve_checkpoint(sys.argv[1]).name)
except CheckpointError as error:
    print(error)
"""


def resolve_offline(model: str, hub_cache: Path) -> str:
    """Resolves in a child process, because huggingface_hub reads its settings when it is imported."""
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache), "PYTHONPATH": str(Path.cwd() / "src")}
    result = subprocess.run(
        [sys.executable, "-c", RESOLVE, model], env=environment, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def test_downloaded_repository_needs_no_network(tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--org--name"
    (repository / "snapshots" / revision).mkdir(parents=True)
    (repository / "snapshots" / revision / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    assert resolve_offline("org/name", tmp_path) == revision


def test_failed_download_is_reported(tmp_path: Path) -> None:
    message = resolve_offline("org/name", tmp_path)
    assert "'org/name'" in message
    assert "could not be downloaded" in message
    assert "HF_HUB_OFFLINE is set" in message
    assert "http" not in message


def test_an_unknown_hub_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise OSError("cannot connect") from socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("glimpse.engine.checkpoint.hub.snapshot_download", download)
    with pytest.raises(CheckpointError, match="from the hub: the hub's name does not resolve; without network access"):
        resolve_checkpoint("org/name")


def test_embedded_checkpoint_is_found() -> None:
    assert resolve_checkpoint(str(DEFAULT_MODEL)) == DEFAULT_MODEL


@pytest.mark.parametrize(
    ("config", "untrained"),
    [(json.dumps({UNTRAINED_MARK: True}), True), ("{}", False), ("[]", False), ("no JSON", False), (None, False)],
)
def test_checkpoint_declares_whether_it_is_untrained(tmp_path: Path, config: str | None, untrained: bool) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert is_untrained(tmp_path) == untrained


def test_weights_are_downloaded_once_of_a_model_that_has_them_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files := tmp_path / "files").mkdir()
    for name in ("config.json", "model.safetensors", "consolidated.safetensors"):
        (files / name).write_text(f"{{}}  {name}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with serve_hub({"org/name": files}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        url = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        folder = resolve_checkpoint("org/name")
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert "consolidated.safetensors" not in hub.sent_bytes
