"""Finds the checkpoint that the server serves."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glimpse import __version__
from glimpse.engine.checkpoint.families.companions import resolve_companions
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.location import DEFAULT_MODEL, default_name, resolve_checkpoint
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults, read_sampling_defaults
from glimpse.engine.errors import CheckpointError
from glimpse.server.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was found, and how it is served."""

    path: Path
    folders: Mapping[str, str]
    """Folders of its companions, by the field of `config.json`."""
    model: ModelConfig
    names: tuple[str, ...]
    """Names that requests may give as `model`; at least one."""
    sampling: SamplingDefaults
    """Defaults of requests that do not set them."""
    created: int
    """When its server found it, in seconds since the Unix epoch."""

    @property
    def digest(self) -> str:
        """Digest of the version of Glimpse and of the model's configuration, its companions' included."""
        folders = (self.path, *(Path(folder) for folder in self.folders.values()))
        configs = b"\0".join((folder / "config.json").read_bytes() for folder in folders)
        return hashlib.sha256(__version__.encode() + b"\0" + configs).hexdigest()


def find_checkpoint(settings: EngineSettings) -> Checkpoint:
    """Finds the checkpoint; downloads it if it is on the hub. Raises CheckpointError."""
    model = settings.model or str(DEFAULT_MODEL)
    path = resolve_checkpoint(model, mmproj=settings.mmproj)
    folders = resolve_companions(path, settings.companions)
    names = settings.served_model_name or (default_name(model, path),)
    if taken := settings.adapters.keys() & set(names):
        raise CheckpointError(f"'--lora-modules': expected names that the model does not have, got {min(taken)!r}")
    return load_checkpoint(path, folders, names, settings.generation_config, int(time.time()))


def load_checkpoint(
    path: Path, folders: Mapping[str, str], names: tuple[str, ...], generation_config: str, created: int
) -> Checkpoint:
    """Reads a checkpoint that was found. Raises CheckpointError.

    Args:
        folders: Folders of its companions, by the field of `config.json`.
        names: Names that requests may give as `model`.
        created: When it was found, in seconds since the Unix epoch.
    """
    return Checkpoint(
        path=path,
        folders=folders,
        model=load_model_config(path, folders),
        names=names,
        sampling=read_sampling_defaults(generation_config, path),
        created=created,
    )
