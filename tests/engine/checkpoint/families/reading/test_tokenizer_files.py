"""Tokenizers from the older files of Qwen2's: the token ids of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Tokenizer

from glimpse.engine.checkpoint.families.reading.tokenizer_files import has_tokenizer, read_tokenizer
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.files import write_json
from tests.checkpoints.internvl import SPECIAL_TOKENS, TOKEN_IDS, make_internvl_checkpoint, make_original_checkpoint
from tests.checkpoints.tokenizer import PLAIN_TOKENS, make_tokenizer

TEXTS = (
    "",
    "the thing in the USER's hand",
    "They'LL  say\n\n  that 1234 tokens\tare enough!?\r\n",
    "é 😀 e\u0301 日本語 — “x”",
    "<|im_start|>user\n<img><IMG_CONTEXT></img><|im_end|>",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with the older files."""
    model = json.loads(make_tokenizer(SPECIAL_TOKENS).to_str())["model"]
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    write_json(tmp_path / "vocab.json", model["vocab"])
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    write(tmp_path, {str(index): {"content": token, "special": True} for token, index in TOKEN_IDS.items()})
    return tmp_path


def write(path: Path, added: Any, kind: str = "Qwen2Tokenizer") -> None:
    config = {"tokenizer_class": kind, "added_tokens_decoder": added, "eos_token": "<|im_end|>"}
    write_json(path / "tokenizer_config.json", config)


def test_texts_have_the_token_ids_of_transformers(path: Path) -> None:
    assert has_tokenizer(path)
    ours, theirs = load_tokenizer(path), Qwen2Tokenizer.from_pretrained(path)
    for text in TEXTS:
        expected: Any = theirs(text)["input_ids"]
        assert ours.encode(text) == expected
        assert ours.decode(expected, skip_special=False) == theirs.decode(expected)


def test_a_checkpoint_with_the_older_files_is_the_same_model(path: Path, tmp_path: Path) -> None:
    source = make_internvl_checkpoint(tmp_path / "source")
    original = make_original_checkpoint(source, tmp_path / "original")
    expected = load_model_config(original)
    (original / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (original / name).write_bytes((path / name).read_bytes())
    assert load_model_config(original) == expected


def test_refuses_other_tokenizers_by_name(path: Path) -> None:
    write(path, {}, "InternLM2Tokenizer")
    with pytest.raises(CheckpointError, match=r"'tokenizer_class': expected one of Qwen2Tokenizer, .*'InternLM2Tok"):
        read_tokenizer(path)
    write(path, {str(len(PLAIN_TOKENS) + 1): {"content": "<a>", "special": True}})
    with pytest.raises(CheckpointError, match=f"'added_tokens_decoder': expected ids from {len(PLAIN_TOKENS)} on"):
        read_tokenizer(path)
    (path / "merges.txt").unlink()
    assert not has_tokenizer(path)
    with pytest.raises(CheckpointError, match=r"the checkpoint has no tokenizer\.json"):
        read_tokenizer(path)
