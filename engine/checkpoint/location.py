"""Finds a checkpoint: a local folder, the embedded one, or a repository on the Hugging Face hub.

This is the only module that uses huggingface_hub.
"""

import json
import os
import re
import socket
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from huggingface_hub import get_safetensors_metadata, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from glimpse.engine.errors import CheckpointError

DEFAULT_MODEL = Path(str(resources.files("glimpse") / "nano")).resolve()
"""The checkpoint that is embedded in the package."""

UNTRAINED_MARK = "glimpse_untrained"
"""Field of `config.json` that is true if the weights are random."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_METADATA_FILES = ("*.json", "*.jinja", "*.txt")
_WEIGHT_FILES = ("*.safetensors",)


def resolve_checkpoint(model: str, *, with_weights: bool = True) -> Path:
    """Returns the folder of a checkpoint. A model of the hub is downloaded first unless it is in the local cache.

    Args:
        model: a folder, or a hub id such as `Qwen/Qwen2-VL-2B-Instruct`.
        with_weights: False downloads its other files only.

    Raises:
        CheckpointError: the checkpoint does not exist or cannot be downloaded.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"the folder {model!r} is not a checkpoint: it has no config.json")
        return folder.resolve()
    if _HUB_ID.fullmatch(model) is None:
        raise CheckpointError(f"the folder {model!r} does not exist; ids of the hub are ORG/NAME")
    return _download(model, (*_METADATA_FILES, *_WEIGHT_FILES) if with_weights else _METADATA_FILES)


def read_hub_headers(model: str) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """Reads the headers of a hub model's weights, a small part of each file, over the network.

    Returns:
        Each tensor's type, in safetensors' words, and shape, by name; None if they cannot be read.
    """
    if Path(model).expanduser().is_dir():
        return None
    try:
        files = get_safetensors_metadata(model).files_metadata.values()
    except Exception:
        return None
    return {name: (tensor.dtype, tuple(tensor.shape)) for file in files for name, tensor in file.tensors.items()}


def is_untrained(path: Path) -> bool:
    """Returns whether the checkpoint in the folder `path` declares that its weights are random."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get(UNTRAINED_MARK) is True


def _download(model: str, patterns: Sequence[str]) -> Path:
    try:
        return Path(snapshot_download(model, allow_patterns=[*patterns]))
    except GatedRepoError as error:
        raise CheckpointError(f"access to {model!r} is restricted; log in with an account that has access") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{model!r} is neither a folder nor a model on the hub") from error
    except (OSError, ValueError) as error:  # errors of the library, the network or the disk
        raise CheckpointError(
            f"{model!r} is not a folder and could not be downloaded from the hub: {_reason(error)}; "
            "without network access, pass the folder of a checkpoint"
        ) from error


def _reason(error: BaseException) -> str:
    """Returns why a download failed, without addresses and paths of this machine."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    for each in causes:
        if isinstance(each, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set, and the local cache does not have the model"
        if isinstance(each, HfHubHTTPError):
            return f"the hub answered with status {each.response.status_code}"
        if isinstance(each, socket.gaierror):
            return "the hub's name does not resolve"
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
    if isinstance(error, LocalEntryNotFoundError):
        return "the hub cannot be reached, and the local cache does not have the model"
    return type(causes[-1]).__name__
