"""Tests for the tokenizer and the detokenizer: they agree with the tokenizers library."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.tokenizer import Detokenizer, Tokenizer, load_tokenizer
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.tokenizer import make_tokenizer

REFERENCE = make_tokenizer()
TOKENIZER = Tokenizer(REFERENCE)
SIZE = REFERENCE.get_vocab_size()
# Includes ids beyond the vocabulary: padded models have more logits than the tokenizer has tokens.
TOKEN_IDS = st.lists(st.integers(0, SIZE + 20), max_size=40)


@given(st.text())
def test_plain_encoding_equals_the_librarys_without_added_tokens(text: str) -> None:
    assert TOKENIZER.encode_plain(text) == TOKENIZER.encode(text)


def test_spells_words_with_and_without_a_space_before_them() -> None:
    spelled = TOKENIZER.spell_words([" the", "the", " "])
    texts = [b"".join(map(TOKENIZER.token_bytes, token_ids)) for token_ids in spelled]
    assert texts == [b"the", b" the", b" ", b"  "]


@given(st.text())
def test_decodes_encoded_text_like_the_library(text: str) -> None:
    token_ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(token_ids) == REFERENCE.decode(token_ids)


@given(TOKEN_IDS)
def test_decodes_any_tokens_like_the_library(token_ids: list[int]) -> None:
    assert TOKENIZER.decode(token_ids) == REFERENCE.decode(token_ids, skip_special_tokens=True)


@given(TOKEN_IDS)
def test_incremental_text_equals_the_whole_text(token_ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.feed([token_id]) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.finish() == REFERENCE.decode(token_ids, skip_special_tokens=True)


@given(st.text())
def test_incremental_text_never_splits_a_character(text: str) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    shown = REFERENCE.decode(TOKENIZER.encode(text))
    out = ""
    for token_id in TOKENIZER.encode(text):
        out += detokenizer.feed([token_id])
        assert shown.startswith(out)


def test_invalid_bytes_are_not_withheld() -> None:
    continuation = TOKENIZER.encode_plain("é")[-1]
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.feed([continuation]) for _ in range(3)] == ["\ufffd"] * 3


def test_plain_encoding_ignores_added_tokens() -> None:
    token_ids = TOKENIZER.encode_plain("a<|im_end|>b")
    assert TOKENIZER.special_ids.isdisjoint(token_ids)
    assert TOKENIZER.decode(token_ids) == "a<|im_end|>b"


def test_splits_text_at_added_tokens() -> None:
    end = REFERENCE.token_to_id("<|im_end|>")
    assert TOKENIZER.split("é<|im_end|><|im_end|> the") == ["é", end, "", end, " the"]


def test_decodes_single_tokens() -> None:
    first, second = TOKENIZER.encode("é")
    assert TOKENIZER.token_bytes(first) + TOKENIZER.token_bytes(second) == "é".encode()
    assert TOKENIZER.token_text(first) == "\ufffd"
    (the,) = TOKENIZER.encode(" the")
    assert TOKENIZER.token_text(the) == " the"
    (end,) = TOKENIZER.encode("<|im_end|>")
    assert TOKENIZER.token_bytes(end) == b"<|im_end|>"
    assert TOKENIZER.token_bytes(SIZE + 5) == b""


@pytest.mark.parametrize("encode", [TOKENIZER.encode, TOKENIZER.encode_plain, TOKENIZER.split])
def test_other_threads_run_while_a_long_text_is_encoded(encode: Callable[[str], object]) -> None:
    thread = threading.Thread(target=encode, args=("the quick <brown> fox " * 30_000,))
    num_turns = 0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        num_turns += 1
    assert num_turns > 20  # a few, if the library kept the lock


WORDS = st.sampled_from(["the ", "image", "<|im_end|>", "é", " ", "\n", "漢"])


@given(st.lists(WORDS, max_size=60), st.integers(1, 20))
def test_no_text_that_fits_exceeds(words: list[str], repeats: int) -> None:
    text = "".join(words) * repeats
    assert not TOKENIZER.exceeds(text, len(TOKENIZER.encode(text)))


def test_a_text_far_too_long_exceeds_without_being_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def encode(text: str) -> list[int]:
        encoded.append(len(text))
        return TOKENIZER.encode(text)

    counting = Tokenizer(REFERENCE)
    monkeypatch.setattr(counting, "encode", encode)
    text = "the quick brown fox " * 100_000
    assert counting.exceeds(text, 100_000)
    assert 0 < sum(encoded) < len(text) / 4
    encoded.clear()
    assert counting.exceeds(text, 1_000)
    assert not encoded


def test_refuses_a_checkpoint_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("document", ["not json", "{}", json.dumps({"version": "1.0", "model": {}})])
def test_refuses_an_invalid_tokenizer(tmp_path: Path, document: str) -> None:
    (tmp_path / "tokenizer.json").write_text(document)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(tmp_path)


def test_refuses_other_kinds_of_tokenizers(tmp_path: Path) -> None:
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0})).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="byte-level BPE"):
        load_tokenizer(tmp_path)


def test_loads_the_tokenizer_of_a_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path)
    assert load_tokenizer(tmp_path).encode("the image") == TOKENIZER.encode("the image")


def test_texts_are_neither_truncated_nor_padded_as_in_training(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    for text in ("a", "a text of more than four tokens"):
        assert loaded.encode(text) == TOKENIZER.encode(text)
        assert loaded.split(text) == TOKENIZER.split(text)
