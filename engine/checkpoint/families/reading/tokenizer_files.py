"""A checkpoint's tokenizer as a document: its `tokenizer.json`, or one made of the older files of Qwen2's tokenizer.

These are a vocabulary and merges of a byte-level BPE. How text is cut into words before that is code there
(transformers, models/qwen2/tokenization_qwen2.py).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError

_NAME, _VOCABULARY, _MERGES, _CONFIG = "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"
_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's expression for the words of a text."""
_BYTES: Mapping[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def read_tokenizer(path: Path) -> str:
    """Returns the text of the `tokenizer.json` of the checkpoint in a folder.

    Raises:
        CheckpointError: there is none, nor other files that say the same; or a file is not JSON.
    """
    if (path / _NAME).exists():
        return (path / _NAME).read_text(encoding="utf-8")
    if not has_tokenizer(path):
        raise CheckpointError(f"the checkpoint has no {_NAME}")
    config = read_json(path / _CONFIG)
    if (kind := config.get("tokenizer_class")) not in _CLASSES:
        raise CheckpointError(
            f"the checkpoint has no {_NAME}; {_CONFIG}: 'tokenizer_class': expected one of {', '.join(_CLASSES)},"
            f" whose {_VOCABULARY} and {_MERGES} are read instead, got {kind!r}"
        )
    return json.dumps(_document(read_json(path / _VOCABULARY), (path / _MERGES).read_text(encoding="utf-8"), config))


def has_tokenizer(path: Path) -> bool:
    """Returns whether the checkpoint in a folder has the files of a tokenizer."""
    return (path / _NAME).exists() or all((path / name).exists() for name in (_VOCABULARY, _MERGES, _CONFIG))


def _document(vocabulary: Mapping[str, int], merges: str, config: Mapping[str, Any]) -> dict[str, Any]:
    stored: Mapping[str, Mapping[str, Any]] = config.get("added_tokens_decoder", {})
    added = sorted((int(token_id), token) for token_id, token in stored.items())
    if (found := [token_id for token_id, _ in added]) != [*range(len(vocabulary), len(vocabulary) + len(added))]:
        raise CheckpointError(
            f"{_CONFIG}: 'added_tokens_decoder': expected ids from {len(vocabulary)} on, the size of {_VOCABULARY},"
            f" without gaps; got {found}"
        )
    lines = [line for line in merges.splitlines() if line and not line.startswith("#version")]
    return byte_level_document(vocabulary, lines, added, words=(QWEN2_WORDS,), normalizer={"type": "NFC"})


def byte_level_document(
    vocabulary: Mapping[str, int],
    merges: Sequence[str],
    added: Iterable[tuple[int, Mapping[str, Any]]],
    *,
    words: Iterable[str],
    normalizer: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the `tokenizer.json` of a byte-level BPE.

    Args:
        vocabulary: id of each token.
        merges: pairs with a space between them, those that are merged first in front.
        added: id and fields of the added tokens.
        words: expressions of a text's words, applied one after the other.
        normalizer: what is done with a text first.
    """
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": token_id, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **token}
            for token_id, token in added
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                *(
                    {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
                    for each in words
                ),
                _BYTES,
            ],
        },
        "post_processor": _BYTES,
        "decoder": _BYTES,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
