"""Finds a checkpoint: a local folder, a GGUF file, the embedded one, or a repository on the Hugging Face hub, or a GGUF
file there."""

import json
import re
from importlib import resources
from pathlib import Path

from glimpse.engine.checkpoint.gguf.folder import folder_of
from glimpse.engine.errors import CheckpointError

DEFAULT_MODEL = Path(str(resources.files("glimpse") / "nano")).resolve()
"""The checkpoint that is embedded in the package."""

UNTRAINED_MARK = "glimpse_untrained"
"""Field of `config.json` that is true if the weights are random."""

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
_METADATA_FILES = ("*.json", "*.jinja", "*.txt")
_WEIGHT_FILES = ("*.safetensors",)


def resolve_checkpoint(model: str, *, with_weights: bool = True, mmproj: Path | None = None) -> Path:
    """Returns the folder of a checkpoint. A model of the hub is downloaded first unless it is in the local cache.

    Args:
        model: a folder, a GGUF file, a hub id such as `Qwen/Qwen2-VL-2B-Instruct`, or one with the type of a GGUF file,
            `ORG/NAME:Q4_K_M`.
        with_weights: False downloads its other files only; a GGUF file is downloaded all the same.
        mmproj: see `folder_of`.

    Raises:
        CheckpointError: the checkpoint does not exist or cannot be downloaded.
    """
    folder = Path(model).expanduser()
    hub_id = None if folder.exists() else _HUB_ID.fullmatch(model)
    kind = hub_id[2] if hub_id else None
    if mmproj is not None and not folder.is_file() and kind is None:
        raise CheckpointError(f"'--mmproj': expected a GGUF file as the model, got {model!r}")
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            files = sorted(file.name for file in folder.glob("*.gguf"))
            named = f"; name one of its files: {', '.join(files)}" if files else ""
            raise CheckpointError(f"the folder {model!r} is not a checkpoint: it has no config.json{named}")
        return folder.resolve()
    if folder.is_file():
        return folder_of(folder, mmproj and mmproj.expanduser())
    if hub_id is None:
        what = "file" if folder.suffix == ".gguf" else "folder"
        raise CheckpointError(f"the {what} {model!r} does not exist; ids of the hub are ORG/NAME")
    from glimpse.engine.checkpoint import hub  # noqa: PLC0415 - the hub's library takes 0.3 s to import

    if kind is not None:
        file, *encoders = hub.download_gguf(hub_id[1], kind)
        return folder_of(file, mmproj and mmproj.expanduser(), encoders)
    downloaded = hub.download(model, (*_METADATA_FILES, *_WEIGHT_FILES) if with_weights else _METADATA_FILES)
    if not (downloaded / "config.json").is_file():
        types = hub.gguf_types(model)
        named = f"; name the type of one of its GGUF files, as {model}:{types[0]}: {', '.join(types)}" if types else ""
        raise CheckpointError(f"{model!r} on the hub is not a checkpoint: it has no config.json{named}")
    return downloaded


def default_name(model: str, path: Path) -> str:
    """Returns the name under which a checkpoint is served unless an option gives another.

    Args:
        model: as for `resolve_checkpoint`.
        path: what that returned. The folder of a downloaded checkpoint is named by a hash.
    """
    given = Path(model).expanduser()
    if given.is_file():
        return given.stem
    return path.name if given.is_dir() else model


def is_untrained(path: Path) -> bool:
    """Returns whether the checkpoint in the folder `path` declares that its weights are random."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get(UNTRAINED_MARK) is True
