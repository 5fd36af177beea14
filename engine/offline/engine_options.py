"""Checks the engine's options that callers of `LLM` give."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from glimpse.engine.config import EngineConfig, OfflineOptions
from glimpse.engine.offline.fields import InputError
from glimpse.engine.option_errors import explain

_CONFIG = TypeAdapter(EngineConfig)
_UNLIMITED = 2**31
_NAMES_HERE = {
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "max_batch_tokens",
    "enable_prefix_caching": "prefix_caching",
    "enforce_eager": "cuda_graphs (which means the opposite)",
}
"""What options of vLLM are called here."""


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
        hint = f"; here it is {_NAMES_HERE[name]}" if name in _NAMES_HERE else ""
        raise TypeError(f"LLM() got an unexpected keyword argument {name!r}{hint}")
    # All of a call's prompts wait at once.
    values = {**options, "model_path": str(checkpoint), "companions": companions, "max_waiting": _UNLIMITED}
    try:
        return _CONFIG.validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise InputError(str(wrong["loc"][0]), explain(wrong)) from error
