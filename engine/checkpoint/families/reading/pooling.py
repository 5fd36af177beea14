"""Reads how a checkpoint pools its hidden states, and what it does with texts before, from the files that
sentence-transformers writes beside the weights.

`modules.json` lists the modules that follow each other, and `1_Pooling/config.json` has the pooling's flags
(sentence-transformers, `SentenceTransformer.save`). Checkpoints without these files pool the last token and normalize.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams

_DEFAULT_FOLDER, _TEXTS = "1_Pooling", "sentence_bert_config.json"
_MODES = {"pooling_mode_lasttoken": PoolingMode.LAST_TOKEN, "pooling_mode_mean_tokens": PoolingMode.MEAN}
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


def read_pooling(path: Path) -> PoolingParams:
    """Returns the pooling of the checkpoint in a folder.

    Raises:
        CheckpointError: it has a module after the decoder, or a kind of pooling, that is not supported; or a file is
            not as sentence-transformers writes it.
    """
    folder, normalize = _DEFAULT_FOLDER, True
    if (path / "modules.json").exists():
        modules = _read_modules(path)
        folder, normalize = modules.get("Pooling", _DEFAULT_FOLDER), "Normalize" in modules
    if not (path / folder / "config.json").exists():
        return PoolingParams(normalize=normalize)
    return PoolingParams(mode=_mode(read_json(path / folder / "config.json"), folder), normalize=normalize)


def read_max_tokens(path: Path) -> int | None:
    """Returns the most tokens of a text that the checkpoint in a folder embeds; None: as many as it has positions.

    Raises:
        CheckpointError: it changes texts first.
    """
    for file, field, unchanged in (
        (_TEXTS, "do_lower_case", False),
        ("config_sentence_transformers.json", "default_prompt_name", None),
    ):
        if value := read_json(path / file, is_optional=True).get(field):
            raise CheckpointError(
                f"{file}: '{field}': expected {unchanged!r}, got {value!r}: texts are embedded as they are sent"
            )
    found: object = read_json(path / _TEXTS, is_optional=True).get("max_seq_length")
    if found is None or (isinstance(found, int) and found > 0):
        return found
    raise CheckpointError(f"{_TEXTS}: 'max_seq_length': expected a positive integer, got {found!r}")


def _read_modules(path: Path) -> dict[str, str]:
    """Returns the folder of each module by its type."""
    listed: object = read_json(path / "modules.json")
    modules: dict[str, str] = {}
    for module in cast("list[object]", listed) if isinstance(listed, list) else [listed]:
        match module:
            case {"type": str() as name, "path": str() as folder}:
                modules[name.rpartition(".")[2]] = folder
            case _:
                raise CheckpointError("modules.json: expected a list of objects with 'type' and 'path'")
    if unknown := [name for name in modules if name not in _KNOWN_MODULES]:
        raise CheckpointError(f"modules.json: expected modules of {', '.join(_KNOWN_MODULES)}; got {unknown[0]}")
    return modules


def _mode(config: Mapping[str, Any], folder: str) -> PoolingMode:
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) == 1 and chosen[0] in _MODES:
        return _MODES[chosen[0]]
    got = " and ".join(chosen) or "none"
    raise CheckpointError(f"{folder}/config.json: expected one of {', '.join(_MODES)}; got {got}")
