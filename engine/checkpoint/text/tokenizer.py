"""Tokenizer: BPE from a checkpoint's `tokenizer.json`, byte-level or in SentencePiece's way.

The only module that uses the tokenizers library.
"""

import codecs
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing

from glimpse.engine.checkpoint.families.reading.tokenizer_files import read_tokenizer
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.token_spelling import Spelling, byte_level, removes_first_space, spelling_of
from glimpse.engine.errors import CheckpointError

_MAX_CHARACTERS_PER_BYTE = 2
"""Normalization composes up to three characters to two bytes."""
_PLAUSIBLE_CHARACTERS_PER_TOKEN = 6
_SLICE_CHARACTERS = 1 << 16
_CUT_TOKENS = 64
"""A cut can split a word, whose halves take a few tokens more than the whole."""


class Tokenizer:
    """A BPE with added tokens such as `<|im_end|>`."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        spelling: Spelling = byte_level,
        removes_first_space: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: The library's.
            spelling: How its vocabulary spells tokens.
            removes_first_space: Encoding puts a space before the first word, and decoding a whole text removes it.
        """
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._removes_first_space = removes_first_space
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values())
        """One more than the largest id: there may be gaps."""
        self._prefix_ids, self._suffix_ids = _affix_ids(tokenizer)
        self._bytes: dict[int, bytes] = {}  # cache
        self._texts: dict[int, str] = {}  # cache
        self._plain = _without_added_tokens(tokenizer)
        self._continuing = _without_first_space(self._plain)
        longest = max(map(len, vocabulary))  # spelled with a character for each byte
        self.max_characters_per_token = longest * (_MAX_CHARACTERS_PER_BYTE if tokenizer.normalizer else 1)
        """The most characters of a text that one token can stand for."""

    @property
    def added_texts(self) -> tuple[str, ...]:
        """Spellings of the added tokens."""
        return tuple(self._added.values())

    def added_id(self, spelling: str) -> int:
        """Returns the id of an added token. Raises KeyError if there is none."""
        return {text: token_id for token_id, text in self._added.items()}[spelling]

    def encode(self, text: str) -> list[int]:
        """Encodes a text and recognizes added tokens in it. Other threads run meanwhile."""
        return _encode_fast(self._tokenizer, text)

    def encode_plain(self, text: str, *, is_first: bool = True) -> list[int]:
        """Encodes a text without recognizing added tokens. Other threads run meanwhile.

        Args:
            text: a text, or a piece of one from `split`.
            is_first: Nothing precedes it. Some tokenizers put a space before the first word of a text.
        """
        return _encode_fast(self._plain if is_first else self._continuing, text)

    def spell_words(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Returns the tokens of each word, where it continues a text and after a space, without duplicates."""
        bare = (word.lstrip() or word for word in words)
        texts = (text for word in bare for text in (word, f" {word}"))
        spelled = (tuple(self.encode_plain(text, is_first=False)) for text in texts)
        return tuple(dict.fromkeys(token_ids for token_ids in spelled if token_ids))

    def exceeds(self, text: str, max_tokens: int) -> bool:
        """Returns whether a text certainly has more tokens, without encoding much more than `max_tokens` of them.

        False means that the text may be encoded: that takes not much longer than a text of `max_tokens` takes.
        """
        if len(text) <= max_tokens * _PLAUSIBLE_CHARACTERS_PER_TOKEN:
            return False
        if len(text) > max_tokens * self.max_characters_per_token:
            return True
        num_tokens = 0
        for start in range(0, len(text), _SLICE_CHARACTERS):
            num_tokens += len(self.encode(text[start : start + _SLICE_CHARACTERS])) - _CUT_TOKENS
            if num_tokens > max_tokens:
                return True
        return False

    def split(self, text: str) -> list[int | str]:
        """Splits a text into added tokens, as ids, and the texts between them."""
        # A batch, because `encode` keeps other threads from running.
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        pieces: list[int | str] = []
        end = 0
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._added:
                pieces += [text[end:start], token_id]
                end = stop
        return [*pieces, text[end:]]

    def token_text(self, token_id: int) -> str:
        """Decodes a single token; bytes that are not valid UTF-8 on their own become U+FFFD."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.token_bytes(token_id).decode(errors="replace")
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Returns a token's UTF-8 bytes; none for ids beyond the vocabulary, which padded models can generate."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._make_bytes(token_id)
        return data

    def _make_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        return self._spelling(self._tokenizer.id_to_token(token_id) or "")

    def with_prefix(self, token_ids: list[int]) -> list[int]:
        """Returns a raw text's tokens after those that start each text, such as `<s>`, unless it has them already."""
        prefix = self._prefix_ids
        return token_ids if token_ids[: len(prefix)] == prefix else prefix + token_ids

    def with_suffix(self, token_ids: list[int]) -> list[int]:
        """Returns a raw text's tokens before those that end each text, such as `<|endoftext|>`, unless it has them."""
        suffix = self._suffix_ids
        return token_ids if suffix == token_ids[len(token_ids) - len(suffix) :] else token_ids + suffix

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Decodes the token ids of a whole text.

        An answer continues a text: `Detokenizer` keeps a space before its first word.
        """
        hidden = self.special_ids if skip_special else ()
        visible = (token_id for token_id in token_ids if token_id not in hidden)
        text = b"".join(map(self.token_bytes, visible)).decode(errors="replace")
        return text.removeprefix(" ") if self._removes_first_space else text


def _encode_fast(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # A batch, because `encode` keeps other threads from running: for a second per megabyte.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return encoding.ids


def _affix_ids(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the tokens that the library's post-processing puts before a text and after it."""
    with_all, plain = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    start = with_all.index(plain[0])
    return with_all[:start], with_all[start + len(plain) :]


def _without_added_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Returns a tokenizer that shares the model's memory."""
    plain = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.pre_tokenizer is not None:
        plain.pre_tokenizer = tokenizer.pre_tokenizer
    if tokenizer.normalizer is not None:
        plain.normalizer = tokenizer.normalizer
    return plain


def _without_first_space(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Returns a tokenizer that puts no space before a text if this one does so only at the start of a text."""
    metaspace = tokenizer.pre_tokenizer
    if not isinstance(metaspace, Metaspace) or metaspace.prepend_scheme != "first":
        return tokenizer
    continuing = tokenizers.Tokenizer(tokenizer.model)
    continuing.pre_tokenizer = Metaspace(
        replacement=metaspace.replacement, prepend_scheme="never", split=metaspace.split
    )
    if tokenizer.normalizer is not None:
        continuing.normalizer = tokenizer.normalizer
    return continuing


def _set_affixes(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Makes a tokenizer start and end texts as `tokenizer_config.json` says, which takes precedence over
    `tokenizer.json` for Llama's class alone (transformers, models/llama/tokenization_llama_fast.py, version 4)."""
    flags = {"bos": config.get("add_bos_token", True), "eos": config.get("add_eos_token", False)}
    is_llama = config.get("tokenizer_class") in ("LlamaTokenizer", "LlamaTokenizerFast")
    if not is_llama or not config.keys() & {"add_bos_token", "add_eos_token"}:
        return
    named = {name: config.get(f"{name}_token") for name, is_added in flags.items() if is_added}
    texts = {name: each.get("content") if isinstance(each, Mapping) else each for name, each in named.items()}
    ids = {name: (text, tokenizer.token_to_id(text)) for name, text in texts.items() if isinstance(text, str)}
    known = {name: (text, token_id) for name, (text, token_id) in ids.items() if token_id is not None}
    first, last = ([known[name][0]] if name in known else [] for name in ("bos", "eos"))
    tokenizer.post_processor = TemplateProcessing(
        single=[*first, "$A", *last], special_tokens=list(dict.fromkeys(known.values()))
    )


def load_tokenizer(path: Path, *, markers: Iterable[str] = ()) -> Tokenizer:
    """Loads the tokenizer of a checkpoint.

    Args:
        path: Folder of the checkpoint.
        markers: Spellings of special tokens to add where the tokenizer has none, with their id of the vocabulary, or
            after it.

    Raises:
        CheckpointError: `tokenizer.json` is missing and so are the files that say the same, it cannot be read, or it is
            no such BPE.
    """
    try:
        document = read_tokenizer(path)
        tokenizer = tokenizers.Tokenizer.from_str(document)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"the checkpoint's tokenizer.json cannot be read: {error}") from error
    # A file keeps those of training; transformers applies them only where its caller says so.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [marker for marker in markers if marker not in known]
    tokenizer.add_special_tokens([tokenizers.AddedToken(marker, special=True, normalized=False) for marker in missing])
    _set_affixes(tokenizer, read_json(path / "tokenizer_config.json", is_optional=True))
    fields = json.loads(document)
    spelling = spelling_of(fields)
    if spelling is None:
        raise CheckpointError(
            "the checkpoint's tokenizer.json: expected a byte-level BPE, or a BPE with bytes as fallback as"
            " SentencePiece makes it; other kinds of tokenizers are not supported"
        )
    return Tokenizer(tokenizer, spelling=spelling, removes_first_space=removes_first_space(fields))


class Detokenizer:
    """Decodes one completion. Its texts joined equal `Tokenizer.decode` of all tokens."""

    def __init__(self, tokenizer: Tokenizer, *, hidden_ids: Collection[int] | None = None) -> None:
        """
        Args:
            tokenizer: The checkpoint's.
            hidden_ids: Tokens to skip. Default: the special tokens.
        """
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if hidden_ids is None else hidden_ids
        self._incomplete = b""
        """The beginning of a character."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these tokens complete; bytes that are not UTF-8 become U+FFFD."""
        hidden, bytes_of = self._hidden_ids, self._tokenizer.token_bytes
        data = self._incomplete + b"".join([bytes_of(each) for each in token_ids if each not in hidden])
        text, num_decoded = codecs.utf_8_decode(data, "replace")
        self._incomplete = data[num_decoded:]
        return text

    def finish(self) -> str:
        """Returns what is left at the end: U+FFFD for an incomplete character."""
        return self._incomplete.decode(errors="replace")
