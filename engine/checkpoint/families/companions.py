"""Finds the checkpoints that another one names as parts of its model, as Ultravox's does its decoder and encoder."""

from collections.abc import Mapping
from pathlib import Path

from glimpse.engine.checkpoint.families.registry import FAMILIES, architecture_of
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError


def named_companions(path: Path) -> dict[str, str]:
    """Returns what the checkpoint in a folder names as parts of its model: an id on the hub or a folder, by the field
    of `config.json`.

    Raises:
        CheckpointError: `config.json` is missing or not JSON, or a name is not a string.
    """
    config = read_json(path / "config.json")
    spec = FAMILIES.get(architecture_of(config))
    names = {field: config[field] for field in (spec.companions if spec else ()) if config.get(field) is not None}
    for field, name in names.items():
        if not isinstance(name, str):
            raise CheckpointError(f"config.json: '{field}': expected a string, got {name!r}")
    return names


def resolve_companions(path: Path, replaced: Mapping[str, str], *, with_weights: bool = True) -> dict[str, str]:
    """Returns the folders of the checkpoints that the one in a folder names, by the field of `config.json`. Those that
    are on the hub are downloaded first unless they are in the local cache.

    Args:
        path: folder of the checkpoint that names others.
        replaced: what stands for some of the names: a folder, or an id on the hub.

    Raises:
        CheckpointError: a checkpoint cannot be found, or `replaced` has a name that `config.json` has not.
    """
    names = named_companions(path)
    for name in replaced:
        if name not in names.values():
            named = ", ".join(map(repr, names.values())) or "none"
            raise CheckpointError(f"--companion {name}=…: config.json does not name this checkpoint; it names {named}")
    folders: dict[str, str] = {}
    for field, name in names.items():
        try:
            folders[field] = str(resolve_checkpoint(replaced.get(name, name), with_weights=with_weights))
        except CheckpointError as error:
            raise CheckpointError(
                f"config.json: '{field}': the model needs the checkpoint {name!r}: {error};"
                f" if it is in a folder, pass --companion {name}=FOLDER"
            ) from error
    return folders
