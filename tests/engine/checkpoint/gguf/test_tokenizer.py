"""Tokenizers in GGUF files give the ids of the original ones, on code, emoji and several scripts."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from glimpse.engine.checkpoint.gguf.folder import WEIGHTS
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.tokenizer import read_tokenizer_documents
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer as Ours
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.corpus import corpus
from tests.checkpoints.gguf import add_byte_level, finish

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def byte_level(*words: Any, normalizer: Any = None, use_regex: bool = False, ignore_merges: bool = False) -> Tokenizer:
    """Trains a tokenizer as published ones are built."""
    tokenizer = Tokenizer(models.BPE())
    octets = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, octets])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus().splitlines(keepends=True), trainer)
    if ignore_merges:
        document = json.loads(tokenizer.to_str())
        document["model"] |= {"ignore_merges": True}
        document["model"]["vocab"] |= {"Ġunmergeable": 1500}
        tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def split(expression: str) -> Any:
    return pre_tokenizers.Split(Regex(expression), behavior="isolated")


PUBLISHED: dict[str, Callable[[], Tokenizer]] = {
    "gpt-2": lambda: byte_level(use_regex=True),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "llama-bpe": lambda: byte_level(split(LLAMA3), ignore_merges=True),
    "qwen2": lambda: byte_level(split(QWEN2), normalizer=normalizers.NFC()),
    "gpt-4o": lambda: byte_level(split(GPT4O)),
    "deepseek-r1-qwen": lambda: byte_level(split(QWEN2)),
}


def write(folder: Path, add: Callable[[GGUFWriter], None], architecture: str = "llama") -> Gguf:
    folder.mkdir(exist_ok=True)
    writer = GGUFWriter(folder / WEIGHTS, architecture)
    add(writer)
    finish(writer)
    return Gguf(folder / WEIGHTS)


def load(folder: Path, add: Callable[[GGUFWriter], None], architecture: str = "llama") -> Ours:
    """Writes a file, and loads its tokenizer as a server does."""
    documents = read_tokenizer_documents(write(folder, add, architecture))
    for name, document in zip(("tokenizer.json", "tokenizer_config.json"), documents, strict=True):
        (folder / name).write_text(json.dumps(document))
    return load_tokenizer(folder)


@pytest.mark.parametrize("pre", PUBLISHED)
def test_ids_are_those_of_the_original(tmp_path: Path, pre: str) -> None:
    original = PUBLISHED[pre]()
    document, size = json.loads(original.to_str()), original.get_vocab_size()
    ours = load(tmp_path, lambda writer: add_byte_level(writer, document, pre, size + 3))
    text = corpus() + " unmergeable<|im_start|>user\nHi<|im_end|>"
    assert len(text.encode()) >= 100_000
    expected = original.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == expected
    assert ours.decode(expected) == original.decode(expected)
    assert ours.special_ids == {original.token_to_id(token) for token in SPECIAL}


def test_words_are_divided_as_llama_cpp_does_by_default(tmp_path: Path) -> None:
    """Each expression divides what the one before has left."""
    original = PUBLISHED["gpt-2"]()
    document = json.loads(original.to_str())
    load(tmp_path, lambda writer: add_byte_level(writer, document, "default", original.get_vocab_size()))
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).pre_tokenizer
    assert made is not None
    assert [word for word, _ in made.pre_tokenize_str("a=12345 b.c")] == ["a", "=", "123", "45", "Ġb", ".", "c"]


@pytest.mark.parametrize(
    ("pre", "flag", "starts"), [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", None, False)]
)
def test_texts_begin_as_the_metadata_says(tmp_path: Path, pre: str, flag: bool | None, starts: bool) -> None:
    original = PUBLISHED[pre]()
    document, start = json.loads(original.to_str()), original.token_to_id("<|endoftext|>")
    assert start is not None

    def add(writer: GGUFWriter) -> None:
        add_byte_level(writer, document, pre, original.get_vocab_size())
        writer.add_bos_token_id(start)
        if flag is not None:
            writer.add_add_bos_token(flag)

    assert load(tmp_path, add).with_prefix([7]) == ([start, 7] if starts else [7])


def pieces() -> list[str]:
    """The vocabulary of a SentencePiece BPE: special tokens, bytes, then pieces, the best first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False)
    tokenizer.train_from_iterator(corpus().splitlines(), trainer)
    merged = ["".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    characters = sorted(token for token in tokenizer.get_vocab() if len(token) == 1)
    return [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *dict.fromkeys(merged),
        *characters[::2],
    ]


def add_sentencepiece(writer: GGUFWriter, tokens: list[str]) -> None:
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([6 if re.fullmatch("<0x..>", token) else kinds.get(token, 1) for token in tokens])
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def sentencepiece(text: str, ids: dict[str, int]) -> Iterable[int]:
    """Encodes by the definition: of all adjacent pairs whose union is a piece, the best one is merged, the first of
    equal ones; characters without a piece are bytes."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (ids[pair], place) for place in range(len(parts) - 1) if (pair := parts[place] + parts[place + 1]) in ids
        ]
        if not pairs:
            break
        _, place = min(pairs)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    for part in parts:
        yield from [ids[part]] if part in ids else [3 + byte for byte in part.encode()]


def test_ids_are_those_of_sentencepiece(tmp_path: Path) -> None:
    tokens = pieces()
    ours = load(tmp_path, lambda writer: add_sentencepiece(writer, tokens))
    ids = {token: index for index, token in enumerate(tokens)}
    lines = [line for line in corpus().splitlines() if line]
    assert len("".join(lines).encode()) >= 100_000
    assert [ours.encode(line) for line in lines] == [list(sentencepiece(line, ids)) for line in lines]
    assert [ours.decode(ours.encode(line)) for line in lines] == lines
    assert ours.with_prefix([7]) == [1, 7]


def test_spaces_behind_special_tokens_of_phi3_are_no_text(tmp_path: Path) -> None:
    tokens = pieces()
    tokenizer = load(tmp_path, lambda writer: add_sentencepiece(writer, tokens), architecture="phi3")
    assert tokenizer.encode("</s>\n the") == tokenizer.encode("</s>the")
    assert tokenizer.encode("<s>\n the") != tokenizer.encode("<s>the")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda writer: writer.add_tokenizer_model("bert"),
            "tokenizer.ggml.model': expected gpt2, llama or gemma4, got 'bert'",
        ),
        (lambda writer: writer.add_tokenizer_pre("none"), "tokenizer.ggml.pre': expected one of default, gpt-2,"),
        (lambda writer: writer.add_token_list(["a"] * 3), "tokenizer.ggml.tokens': expected each token once"),
        (lambda writer: writer.add_token_list(["a" * 2000]), "at most 1024 characters, got 2000"),
        (lambda writer: writer.add_token_types([1, 1]), "tokenizer.ggml.token_type': expected 3 values, .* got 2"),
        (
            lambda writer: (writer.add_tokenizer_model("llama"), writer.add_token_scores([0.0])),
            "tokenizer.ggml.scores': expected 3 values, .* got 1",
        ),
        (lambda writer: writer.add_tokenizer_model("llama"), "tokenizer.ggml.scores': expected a score for each token"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges(["a b"])
        change(_Overwriting(writer))

    with pytest.raises(CheckpointError, match=message):
        read_tokenizer_documents(write(tmp_path, add))


class _Overwriting:
    """A writer that may set a key again."""

    def __init__(self, writer: GGUFWriter) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*values: Any) -> None:
            before = self._writer.kv_data[0]
            self._writer.kv_data[0] = {}
            getattr(self._writer, name)(*values)
            self._writer.kv_data[0] = before | self._writer.kv_data[0]

        return call
