"""What is particular to one architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glimpse.engine.model_config import EncoderConfig, TextConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyConfig:
    """The parts of `config.json` that each family spells in its own way."""

    text: TextConfig
    encoder: EncoderConfig | None = None
    placeholder_ids: Mapping[str, int]
    """Placeholder token id of each kind of media that the model supports: "image", "video", "audio"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """One architecture: a row of the registry."""

    read_config: Callable[[Mapping[str, Any]], FamilyConfig]
    """Reads `config.json`.

    Raises:
        KeyError: a field is missing.
        CheckpointError: a value is not supported.
    """
    module: str
    """Module of `glimpse.engine.models` whose `make_model` builds it. A name, because the front end loads no torch."""
    fallback_template: str | None = None
    """Chat template for checkpoints without one."""
