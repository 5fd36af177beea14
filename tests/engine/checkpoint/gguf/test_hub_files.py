"""`ORG/NAME:TYPE`: a GGUF file of the hub is chosen by its type, with its parts and its mmproj."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from glimpse.engine.checkpoint.gguf import folder
from glimpse.engine.checkpoint.gguf.file_names import choose, encoder_of, parts_of, types_of
from glimpse.engine.checkpoint.gguf.folder import ENCODER, WEIGHTS
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.location import default_name, resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.gguf import write_gguf
from tests.checkpoints.mmproj import write_mmproj
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.server.cli.hub import Hub, serve_hub

NAMES = [
    "BF16/Model-BF16-00001-of-00002.gguf",
    "BF16/Model-BF16-00002-of-00002.gguf",
    "Model-IQ4_XS.gguf",
    "Model-Q4_K_M.gguf",
    "Model-UD-Q4_K_XL.gguf",
    "Model.q8_0.gguf",
    "README.md",
    "imatrix-Q4_K_M.gguf",
    "mmproj-F16.gguf",
    "mmproj-F32.gguf",
    "mmproj-Q8_0.gguf",
]


@pytest.mark.parametrize(
    ("kind", "file", "encoder"),
    [
        ("Q4_K_M", "Model-Q4_K_M.gguf", "mmproj-Q8_0.gguf"),
        ("q8_0", "Model.q8_0.gguf", "mmproj-Q8_0.gguf"),
        ("Q4_K_XL", "Model-UD-Q4_K_XL.gguf", "mmproj-Q8_0.gguf"),
        ("UD-Q4_K_XL", "Model-UD-Q4_K_XL.gguf", "mmproj-Q8_0.gguf"),
        ("BF16", "BF16/Model-BF16-00001-of-00002.gguf", "mmproj-F16.gguf"),
        ("Q4_K", None, None),
        ("4_XS", None, None),
        (".*", None, None),
    ],
)
def test_a_type_names_a_file(kind: str, file: str | None, encoder: str | None) -> None:
    assert choose(NAMES, kind) == file
    assert file is None or encoder_of(NAMES, file) == encoder


def test_names_of_files() -> None:
    assert types_of(NAMES) == ["BF16", "IQ4_XS", "Q4_K_M", "Q4_K_XL", "q8_0"]
    assert parts_of(NAMES[0]) == NAMES[:2]
    assert (
        encoder_of(["mmproj-F16.gguf", "b/mmproj-F16.gguf", "a/mmproj-F32.gguf"], "a/x-Q8_0.gguf")
        == "a/mmproj-F32.gguf"
    )
    assert encoder_of(["b/mmproj-F16.gguf"], "a/x-Q8_0.gguf") is None


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with files of one model."""
    checkpoint, files = make_qwen3_vl_checkpoint(tmp_path / "checkpoint"), tmp_path / "files"
    files.mkdir()
    write_gguf(files / "small-Q8_0.gguf", checkpoint, "qwen3vl", "Q8_0", most_tensors=20)
    write_gguf(files / "small-F16.gguf", checkpoint, "qwen3vl", "F16")
    for kind in ("F16", "Q8_0"):
        write_mmproj(files / f"mmproj-{kind}.gguf", checkpoint, kind)
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")
    with serve_hub({"org/name": files}) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        url = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield running


def test_a_type_is_downloaded_with_its_parts_and_its_mmproj(hub: Hub) -> None:
    path = resolve_checkpoint("org/name:Q8_0", with_weights=False)
    asked = {name for name, sent in hub.sent_bytes.items() if sent}
    assert asked == {"mmproj-Q8_0.gguf", *(file.name for file in hub.models["org/name"].glob("small-Q8_0-*"))}
    assert default_name("org/name:Q8_0", path) == "org/name:Q8_0"
    assert len(Gguf(path / WEIGHTS).tensors) > 20
    assert (path / ENCODER).readlink().name == "mmproj-Q8_0.gguf"
    other = resolve_checkpoint("org/name:f16")
    assert (other / ENCODER).readlink().name == "mmproj-F16.gguf"
    hub.is_down = True
    assert resolve_checkpoint("org/name:Q8_0") == path
    with pytest.raises(CheckpointError, match="has no GGUF file of the type 'Q4_K_M'; it has "):
        resolve_checkpoint("org/name:Q4_K_M")
