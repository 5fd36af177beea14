"""Downloads of models from the Hugging Face hub.

This is the only module that uses huggingface_hub.
"""

import os
import socket
from collections.abc import Sequence
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


def download(model: str, patterns: Sequence[str]) -> Path:
    """Downloads the files of a model with names like these, unless they are in the local cache. Returns its folder.

    Raises:
        CheckpointError: the model cannot be downloaded.
    """
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
