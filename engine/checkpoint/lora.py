"""LoRA adapters (arXiv 2106.09685) in the folders that PEFT writes, as their `adapter_config.json` describes them.

An adapter adds scale · B A x to a linear. Independent of torch.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, cast

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.local import LocalFiles

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

_MOST_CONFIG_BYTES = 1 << 20
_MOST_PATTERNS = 2048
"""In a field: of each linear of the largest models, and some."""

ReadFile = Callable[[str, int], bytes]
"""Returns the contents of a file of an adapter's folder, up to a number of bytes. Raises OSError, MediaError."""

_SERVED_VALUES: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "modules_to_save": ([],),
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_rslora": (True, False),
    "fan_in_fan_out": (False,),
    "lora_bias": (False,),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "arrow_config": (),
    # Others begin with a base whose weights differ from the checkpoint's; PEFT can convert them when it saves.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
"""The values of fields that change what an adapter computes, if they are there and not null."""

_MOST_REPEATS, _MOST_CHOICES = 2, 8
"""In a pattern of names: the time to match one grows with the power of their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """An adapter in a folder."""

    name: str
    config: Mapping[str, Any]
    config_hash: bytes
    read: ReadFile

    def weights(self, max_bytes: int = sys.maxsize) -> tuple[bytes, bytes]:
        """Reads the weights once. Returns them, and the adapter's digest: those of the same digest compute the same.

        Raises:
            CheckpointError: the file has more bytes, or cannot be read.
        """
        weights = _contents(self.name, self.read, WEIGHTS_NAME, max_bytes)
        return weights, hashlib.sha256(self.config_hash + hashlib.sha256(weights).digest()).digest()

    def rank(self, module: str) -> int:
        """Returns the rank for a linear, by its name in the model that was trained."""
        return self.config["rank_pattern"].get(_matching(self.config["rank_pattern"], module), self.config["r"])

    def scale(self, module: str) -> float:
        """Returns what B A x is multiplied by: alpha / rank, or with rsLoRA (arXiv 2312.03732) alpha / √rank."""
        patterns, rank = self.config["alpha_pattern"], self.rank(module)
        alpha = patterns.get(_matching(patterns, module), self.config["lora_alpha"])
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def read_adapters(config: EngineConfig) -> list[LoraAdapter]:
    """Reads the configurations of an engine's adapters.

    Raises:
        CheckpointError: there are too many, a file is missing, or an adapter computes something else than LoRA on
            linears.
    """
    number = len(config.lora_modules)
    if number > config.max_loras:
        raise CheckpointError(
            f"'--max-loras': expected at least the {number} of --lora-modules, got {config.max_loras}"
        )
    if number and config.nnodes > 1:
        raise CheckpointError(f"'--lora-modules': expected --nnodes 1, got {config.nnodes}")
    adapters = [read_adapter(name, path, config) for name, path in config.lora_modules.items()]
    for name, path in config.lora_modules.items():
        if not Path(path, WEIGHTS_NAME).is_file():  # which is read when the model is loaded
            raise _missing(name, WEIGHTS_NAME)
    return adapters


def read_adapter(name: str, path: str, config: EngineConfig) -> LoraAdapter:
    """Reads the configuration of an adapter: of `lora_modules`, or below `allowed_lora_path`.

    Raises:
        CheckpointError: the folder is not allowed, a file is missing, or the adapter computes something else than LoRA
            on linears, or has too high a rank.
    """
    read = _reader(name, path, config)
    contents = _contents(name, read, CONFIG_NAME, _MOST_CONFIG_BYTES)
    fields = _checked(name, contents)
    rank = max(fields["r"], *fields["rank_pattern"].values(), 0)
    if rank > config.max_lora_rank:
        raise CheckpointError(
            f"'--max-lora-rank': expected at least the {rank} of adapter {name!r}, got {config.max_lora_rank}"
        )
    return LoraAdapter(name=name, config=fields, config_hash=hashlib.sha256(contents).digest(), read=read)


def _reader(name: str, path: str, config: EngineConfig) -> ReadFile:
    """Returns what reads the files of a folder: of one that the operator names, or of one below that allowed."""
    if config.lora_modules.get(name) == path:
        return lambda file, _: Path(path, file).read_bytes()
    if not config.allowed_lora_path:
        raise CheckpointError(f"adapter {name!r}: expected an engine with --allowed-lora-path")
    files = LocalFiles(Path(config.allowed_lora_path))
    return lambda file, max_bytes: files.read(PurePosixPath(path, file), max_bytes=max_bytes)


def _contents(name: str, read: ReadFile, file: str, max_bytes: int) -> bytes:
    try:
        return read(file, max_bytes)
    except MediaError as error:
        if error.code is MediaErrorCode.URL_REFUSED:
            raise CheckpointError(f"adapter {name!r}: expected a folder below --allowed-lora-path") from error
        if error.code is MediaErrorCode.TOO_LARGE:
            raise CheckpointError(
                f"adapter {name!r}: {file}: expected at most {max_bytes} bytes, more than any of --max-lora-rank has"
            ) from error
        raise _missing(name, file) from error
    except OSError as error:
        raise _missing(name, file) from error


def _missing(name: str, file: str) -> CheckpointError:
    return CheckpointError(
        f"adapter {name!r}: expected a folder with {CONFIG_NAME} and {WEIGHTS_NAME}, got one without {file}"
    )


def _checked(name: str, contents: bytes) -> Mapping[str, Any]:
    """Returns the fields of a configuration."""
    try:
        document: Any = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"adapter {name!r}: {CONFIG_NAME} is not valid JSON") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"adapter {name!r}: {CONFIG_NAME}: expected an object, got {document!r:.40}")
    fields = cast("dict[str, Any]", document)
    config = {"rank_pattern": {}, "alpha_pattern": {}} | {
        field: value for field, value in fields.items() if value is not None
    }
    for field, served in _SERVED_VALUES.items():
        if field in config and config[field] not in served:
            expected = " or ".join(map(repr, served)) or "none"
            raise CheckpointError(f"adapter {name!r}: '{field}': expected {expected}, got {config[field]!r:.100}")
    _check_numbers(name, config)
    return config


def _check_numbers(name: str, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a rank that is no count, a scale that is not finite, or a pattern that might take
    hours to match."""
    for field, patterns, kinds in (("r", "rank_pattern", int), ("lora_alpha", "alpha_pattern", int | float)):
        if not isinstance(config[patterns], dict):
            raise CheckpointError(f"adapter {name!r}: '{patterns}': expected an object, got {config[patterns]!r:.100}")
        if len(config[patterns]) > _MOST_PATTERNS:
            raise CheckpointError(
                f"adapter {name!r}: '{patterns}': expected at most {_MOST_PATTERNS}, got {len(config[patterns])}"
            )
        values: list[Any] = [config.get(field), *config[patterns].values()]
        for value in values:
            if isinstance(value, bool) or not isinstance(value, kinds) or not abs(value) < sys.float_info.max:
                raise CheckpointError(f"adapter {name!r}: '{field}': expected finite numbers, got {value!r:.100}")
            if field == "r" and value < 1:
                raise CheckpointError(f"adapter {name!r}: 'r': expected at least 1, got {value!r}")
        for pattern in config[patterns]:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise CheckpointError(f"adapter {name!r}: '{patterns}': {pattern!r} is no pattern") from error
            repeats, choices = (len(re.findall(each, pattern)) for each in (r"[*+?{]", r"\|"))
            if re.search(r"\)[*+?{]", pattern) or repeats > _MOST_REPEATS or choices > _MOST_CHOICES:
                raise CheckpointError(
                    f"adapter {name!r}: '{patterns}': expected at most {_MOST_REPEATS} repeats in a pattern, none of"
                    f" groups, and {_MOST_CHOICES} of '|', got {pattern!r}"
                )


def _matching(patterns: Mapping[str, Any], module: str) -> str:
    """Returns the first pattern that matches a name, or the end of it after a dot; "" if none does."""
    return next((pattern for pattern in patterns if _compiled(pattern).fullmatch(module)), "")


@lru_cache(2 * _MOST_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?:.*\.)?(?:{pattern})")
