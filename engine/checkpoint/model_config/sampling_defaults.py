"""The sampling parameters that a checkpoint's `generation_config.json` recommends."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.sampling_checks import SamplingValueError, check_values

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
    """Token limit of conversations."""


_NAMES: Mapping[str, str] = {
    name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
} | {"max_new_tokens": "max_tokens"}
"""Names in `SamplingDefaults`, by those in the file, whose other fields are not about sampling, or belong to methods
other than sampling."""


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
    for name, ours in _NAMES.items():
        if (value := document.get(name)) is None:
            continue
        try:
            values |= check_values({ours: value})
        except SamplingValueError as error:
            raise CheckpointError(f"{_FILE}: '{name}': {error.message}") from error
    if document.get("do_sample") is False:
        values["temperature"] = 0.0  # transformers then takes the most likely token, whatever the other fields say
    return SamplingDefaults(**values)
