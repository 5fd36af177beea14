"""Checks the engine's options that callers of `LLM` give."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from glimpse.engine.config import EngineConfig, OfflineOptions
from glimpse.engine.offline.fields import InputError
from glimpse.engine.option_errors import explain

_CONFIG = TypeAdapter(EngineConfig)
_UNLIMITED = 2**31


def parse_engine_options(
    options: Mapping[str, object], checkpoint: Path, companions: Mapping[str, str]
) -> EngineConfig:
    """Returns the configuration of an engine that serves the checkpoint in this folder.

    Args:
        options: of the engine.
        checkpoint: its folder.
        companions: as in `EngineConfig`.

    Raises:
        TypeError: there is no such option.
        InputError: a value has another type, or is out of range.
    """
    for name in options.keys() - OfflineOptions.__annotations__.keys():
        raise TypeError(f"LLM() got an unexpected keyword argument {name!r}")
    # All of a call's prompts wait at once.
    values = {**options, "model_path": str(checkpoint), "companions": companions, "max_waiting": _UNLIMITED}
    try:
        return _CONFIG.validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise InputError(str(wrong["loc"][0]), explain(wrong)) from error
