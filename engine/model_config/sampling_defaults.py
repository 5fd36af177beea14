"""The sampling parameters that a checkpoint's `generation_config.json` recommends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimpse.engine.errors import CheckpointError
from glimpse.engine.model_config.model import read_json

_FILE = "generation_config.json"
_OFF = ("none", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values of sampling parameters that a request does not set; None: the default of the API."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Of conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of the file."""

    name: str
    """In `SamplingDefaults`."""
    expected: str
    is_valid: Callable[[float], bool]
    """Written so that NaN fails."""
    is_integer: bool = False


_FIELDS: Mapping[str, _Field] = {
    "temperature": _Field(name="temperature", expected="a number from 0 to 2", is_valid=lambda x: 0 <= x <= 2),
    "top_p": _Field(name="top_p", expected="a number above 0, up to 1", is_valid=lambda x: 0 < x <= 1),
    "top_k": _Field(name="top_k", expected="an integer, at least 0", is_valid=lambda x: x >= 0, is_integer=True),
    "min_p": _Field(name="min_p", expected="a number from 0 to 1", is_valid=lambda x: 0 <= x <= 1),
    "repetition_penalty": _Field(
        name="repetition_penalty", expected="a number from 0.01 to 100", is_valid=lambda x: 0.01 <= x <= 100
    ),
    "max_new_tokens": _Field(
        name="max_tokens", expected="an integer, at least 1", is_valid=lambda x: x >= 1, is_integer=True
    ),
}
"""By their names in the file. Other fields are not about sampling, or belong to methods other than sampling."""


def read_sampling_defaults(choice: str, checkpoint: Path) -> SamplingDefaults:
    """Reads the defaults that the option `generation_config` selects.

    Args:
        choice: "auto": of the checkpoint, none if it has no such file; "none" or "vllm": no defaults; or a folder
            with a `generation_config.json`.
        checkpoint: folder of the checkpoint.

    Raises:
        CheckpointError: the file is missing from the folder, is not JSON, or has an invalid value.
    """
    if choice in _OFF:
        return SamplingDefaults()
    folder = checkpoint if choice == "auto" else Path(choice).expanduser()
    if choice == "auto" and not (folder / _FILE).exists():
        return SamplingDefaults()
    if not (folder / _FILE).exists():
        raise CheckpointError(f"'generation_config': expected auto, none or a folder with a {_FILE}, got {choice!r}")
    return _parse(read_json(folder / _FILE))


def _parse(document: Mapping[str, Any]) -> SamplingDefaults:
    values: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        value = document.get(name)
        if value is None:
            continue
        types = int if field.is_integer else int | float
        if isinstance(value, bool) or not isinstance(value, types) or not field.is_valid(value):
            raise CheckpointError(f"{_FILE}: '{name}': expected {field.expected}, got {value!r}")
        values[field.name] = value
    if document.get("do_sample") is False:
        values["temperature"] = 0.0  # transformers then takes the most likely token, whatever the other fields say
    return SamplingDefaults(**values)
