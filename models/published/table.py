"""Published checkpoints as facts: what their `config.json` says about the model's shape and its limits.

One JSON file for each family has what its checkpoints share, and for each checkpoint what differs. Tests build every
checkpoint from it without weights; docs/models.md is made from it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheckpoint:
    """A checkpoint on the Hugging Face hub."""

    name: str
    """The checkpoint's id, such as "Qwen/Qwen2-VL-2B-Instruct"."""
    family: str
    """The family's name, such as "Qwen2-VL"."""
    use: str
    """What it is good for."""
    tools: bool
    """The chat template describes tools."""
    reasoning: bool
    """The model can think before it answers."""
    licence: str
    num_parameters: int | None
    """Parameters by the hub's count of safetensors files, without a tied output head; None if not known here."""
    config: Mapping[str, Any]
    """Contents of `config.json`. Where it names other checkpoints as parts, it has their configurations instead."""
    preprocessor: Mapping[str, Any]
    """Contents of `preprocessor_config.json`."""
    generation: Mapping[str, Any]
    """Contents of `generation_config.json`; empty where `config.json` says the same."""
    special_tokens: Sequence[str]
    """Special tokens by which its configuration is read. Their ids are of no concern here."""

    def write(self, folder: Path) -> Path:
        """Writes its configuration files into an existing folder and returns the folder."""
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "preprocessor_config.json").write_text(json.dumps(self.preprocessor))
        (folder / "generation_config.json").write_text(json.dumps(self.generation))
        if self.special_tokens:
            tokens = [{"id": index, "content": token} for index, token in enumerate(self.special_tokens)]
            (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
        return folder


def load_table() -> tuple[PublishedCheckpoint, ...]:
    """Returns the checkpoints of all families, by the families' file names and there from small to large."""
    return tuple(each for file in sorted(_FOLDER.glob("*.json")) for each in _read(json.loads(file.read_bytes())))


def _read(family: Mapping[str, Any]) -> Iterator[PublishedCheckpoint]:
    for name, checkpoint in family["checkpoints"].items():
        yield PublishedCheckpoint(
            name=name,
            family=family["family"],
            num_parameters=checkpoint["num_parameters"],
            config=_merged(family["config"], checkpoint["config"]),
            preprocessor=_merged(family.get("preprocessor", {}), checkpoint.get("preprocessor", {})),
            generation=checkpoint.get("generation", family.get("generation", {})),
            special_tokens=family.get("special_tokens", ()),
            **{field: checkpoint.get(field, family[field]) for field in ("use", "tools", "reasoning", "licence")},
        )


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document with some values changed, also within its objects."""
    merged = {**base, **changes}
    for field, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(field), dict):
            merged[field] = _merged(base[field], value)
    return merged
