"""The files of a tiny checkpoint."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer


def write_files(path: Path, tokenizer: Tokenizer, **documents: Mapping[str, Any]) -> Path:
    """Writes a tokenizer and the documents of these names (`config` is config.json) into the folder `path`.

    The folder is made if it does not exist. Returns it.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    for name, document in documents.items():
        write_json(path / f"{name}.json", document)
    return path


def save_weights(
    path: Path,
    weights: Iterable[tuple[str, torch.Tensor]],
    dtype: str = "float32",
    *,
    rename: Callable[[str], str] = str,
) -> None:
    """Writes tensors into the folder `path`, in "float32" or "bfloat16", under the names that `rename` returns."""
    stored = {rename(name): tensor.to(getattr(torch, dtype)) for name, tensor in weights}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, document: Mapping[str, Any] | list[Any]) -> None:
    path.write_text(json.dumps(document, indent=2))


def write_changed_config(folder: Path, document: Mapping[str, Any], **fields: Any) -> Path:
    """Writes a configuration whose fields are changed, those of objects one by one. Returns the folder."""
    changed = {
        name: {**document[name], **value} if isinstance(value, dict) else value for name, value in fields.items()
    }
    write_json(folder / "config.json", {**document, **changed})
    return folder
