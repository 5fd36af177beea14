"""LoRA adapters (arXiv 2106.09685) in the folders that PEFT writes, as their `adapter_config.json` describes them.

An adapter adds scale · B A x to a linear. Independent of torch.
"""

import hashlib
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

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
    path: Path
    digest: bytes
    """Hash over the files: adapters of the same digest compute the same."""
    config: Mapping[str, Any]

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
    adapters = [_read(name, Path(path)) for name, path in config.lora_modules.items()]
    for adapter in adapters:
        rank = max(adapter.config["r"], *adapter.config["rank_pattern"].values(), 0)
        if rank > config.max_lora_rank:
            raise CheckpointError(
                f"'--max-lora-rank': expected at least the {rank} of adapter {adapter.name!r}, got"
                f" {config.max_lora_rank}"
            )
    return adapters


def _read(name: str, path: Path) -> LoraAdapter:
    files = [path / CONFIG_NAME, path / WEIGHTS_NAME]
    if missing := next((file.name for file in files if not file.is_file()), None):
        raise CheckpointError(
            f"adapter {name!r}: expected a folder with {CONFIG_NAME} and {WEIGHTS_NAME}, got {path} without {missing}"
        )
    document: Any = read_json(files[0])
    if not isinstance(document, dict):
        raise CheckpointError(f"adapter {name!r}: {CONFIG_NAME}: expected an object, got {document!r:.40}")
    fields = cast("dict[str, Any]", document)
    config = {"rank_pattern": {}, "alpha_pattern": {}} | {
        field: value for field, value in fields.items() if value is not None
    }
    for field, served in _SERVED_VALUES.items():
        if field in config and config[field] not in served:
            expected = " or ".join(map(repr, served)) or "none"
            raise CheckpointError(f"adapter {name!r}: '{field}': expected {expected}, got {config[field]!r}")
    _check_numbers(name, config)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return LoraAdapter(name=name, path=path, digest=digest.digest(), config=config)


def _check_numbers(name: str, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a rank that is no count, a scale that is not finite, or a pattern that might take
    hours to match."""
    for field, patterns, kinds in (("r", "rank_pattern", int), ("lora_alpha", "alpha_pattern", int | float)):
        if not isinstance(config[patterns], dict):
            raise CheckpointError(f"adapter {name!r}: '{patterns}': expected an object, got {config[patterns]!r}")
        values: list[Any] = [config.get(field), *config[patterns].values()]
        for value in values:
            if isinstance(value, bool) or not isinstance(value, kinds) or not abs(value) < sys.float_info.max:
                raise CheckpointError(f"adapter {name!r}: '{field}': expected finite numbers, got {value!r}")
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
    return next((pattern for pattern in patterns if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module)), "")
