"""Where a checkpoint lies: a folder, the embedded one, or a repository on the Hugging Face hub.

Knows nothing of what is in the files. This is the only file that knows huggingface_hub.
"""

import json
import re
from importlib import resources
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from glimpse.engine.errors import CheckpointError

DEFAULT_MODEL = Path(str(resources.files("glimpse") / "nano")).resolve()
"""The checkpoint that comes with the project."""

UNTRAINED_MARK = "glimpse_untrained"
"""Field of `config.json` that is true where the weights are random."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt"]


def resolve_checkpoint(model: str) -> Path:
    """The folder of a checkpoint; one of the hub is downloaded first, unless an earlier download is at hand.

    Args:
        model: A folder, or an id such as `Qwen/Qwen2-VL-2B-Instruct`.

    Raises:
        CheckpointError: there is no such checkpoint, or it cannot be downloaded.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"the folder {model!r} is not a checkpoint: it has no config.json")
        return folder.resolve()
    if _HUB_ID.fullmatch(model) is None:
        raise CheckpointError(f"there is no folder {model!r}")
    return _download(model)


def is_untrained(path: Path) -> bool:
    """Whether the checkpoint in the folder `path` says of itself that its weights are random."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get(UNTRAINED_MARK) is True


def _download(model: str) -> Path:
    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise CheckpointError(f"{model!r} is open only to accounts that were granted access; log in first") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"there is neither a folder nor a model on the hub called {model!r}") from error
    except (OSError, ValueError) as error:  # the library's own errors, those of the network and the disk among them
        raise CheckpointError(
            f"there is no folder {model!r}, and it could not be downloaded as a model of the hub; "
            "without network give the folder of a checkpoint"
        ) from error
