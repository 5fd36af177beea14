"""Checks the engine's options that callers of `LLM` give."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from glimpse.engine.protocol.config import EngineConfig, OfflineOptions
from glimpse.engine.protocol.option_values import explain, read_units
from glimpse.engine.protocol.other_names import tell
from glimpse.engine.protocol.vllm_options import (
    NAMES_HERE,
    OPPOSITES,
    OTHER_OPTIONS,
    SPECULATIVE_CONFIG,
    read_speculative_config,
)
from glimpse.offline.fields import InputError, check_name

_CONFIG = TypeAdapter(EngineConfig)
_UNLIMITED = 2**31


def read_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Returns the engine's options among those of a caller, who may write vLLM's names and sizes with a unit.

    Raises:
        TypeError: there is no such option.
        InputError: an option of vLLM asks for something that does not exist, or is given twice.
    """
    here: dict[str, Any] = {}
    known = (*OfflineOptions.__annotations__, *NAMES_HERE, SPECULATIVE_CONFIG)
    for name, value in options.items():
        if not check_name(name, value, known, OTHER_OPTIONS, "LLM()"):
            continue
        if name == SPECULATIVE_CONFIG:
            here |= _speculative(value, options)
            continue
        ours = NAMES_HERE.get(name, name)
        if name != ours:
            tell(f"{name} is {'the opposite of ' if name in OPPOSITES else ''}{ours} here")
            if ours in options:
                raise InputError(name, f"expected this or {ours}, got both")
        here[ours] = not value if name in OPPOSITES else value
    if here.get("quantization", "") is None:
        here["quantization"] = "none"
    return read_units(here)


def _speculative(value: object, options: Mapping[str, object]) -> dict[str, Any]:
    try:
        read = read_speculative_config(value)
    except ValueError as error:
        raise InputError(SPECULATIVE_CONFIG, str(error)) from None
    if both := read.keys() & options.keys():
        raise InputError(SPECULATIVE_CONFIG, f"expected this or {min(both)}, got both")
    return read


def parse_engine_options(
    options: Mapping[str, object], checkpoint: Path, companions: Mapping[str, str], adapters: Mapping[str, str]
) -> EngineConfig:
    """Returns the configuration of an engine that serves the checkpoint in this folder.

    Args:
        options: as `read_options` returns them.

    Raises:
        InputError: a value has another type, or is out of range.
    """
    # All of a call's prompts wait at once.
    paths = {"model_path": str(checkpoint), "companions": companions, "lora_modules": adapters}
    paths["allowed_lora_path"] = "/"  # who calls `LLM` may read what this process may
    values = {**options, **paths, "max_waiting": _UNLIMITED}
    try:
        return _CONFIG.validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise InputError(str(wrong["loc"][0]), explain(wrong)) from error
