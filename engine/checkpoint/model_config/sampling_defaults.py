"""The sampling parameters that a checkpoint's `generation_config.json` recommends."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.option_values import explain

_FILE = "generation_config.json"
_OFF = ("none", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class SamplingDefaults:
    """Values of sampling parameters that a request does not set; None: the default of the API.

    Raises:
        ValidationError: a value is out of the range that the protos state.
    """

    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(-1)] | None = None
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Ge(0.01), Le(100)] | None = None
    max_tokens: Annotated[int, Ge(1)] | None = None
    """Token limit of conversations."""
    min_tokens: Annotated[int, Ge(0)] | None = None


_NAMES: Mapping[str, str] = {
    name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
} | {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
"""Names in `SamplingDefaults`, by those in the file. `generation_config` knows its other fields."""


def read_sampling_defaults(choice: str, checkpoint: Path) -> SamplingDefaults:
    """Reads the defaults that the option `generation_config` selects.

    Args:
        choice: "auto": of the checkpoint, none if it has no such file; "none" or "vllm": no defaults; or a folder
            with a `generation_config.json`.

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
    names = {ours: name for name, ours in _NAMES.items()}
    try:
        defaults = SamplingDefaults(**{ours: document.get(name) for ours, name in names.items()})
    except ValidationError as error:
        wrong = error.errors()[0]
        raise CheckpointError(f"{_FILE}: '{names[str(wrong['loc'][0])]}': {explain(wrong)}") from error
    if defaults.top_k == -1:
        defaults = replace(defaults, top_k=0)
    if document.get("do_sample") is False:
        # transformers then takes the most likely token, whatever the other fields say
        defaults = replace(defaults, temperature=0.0)
    return defaults
