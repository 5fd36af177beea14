"""Tokenizer: byte-level BPE from a checkpoint's `tokenizer.json`.

The only module that uses the tokenizers library.
"""

from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel

from glimpse.engine.errors import CheckpointError


def _byte_characters() -> dict[int, int]:
    """Returns code point → byte of the alphabet in which byte-level BPE spells tokens.

    The alphabet (GPT-2's `bytes_to_unicode`) keeps the printable bytes of Latin-1 and maps the others, in ascending
    order, to the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()
_MAX_CHARACTERS_PER_BYTE = 2
"""Normalization composes up to three characters to two bytes."""
_PLAUSIBLE_CHARACTERS_PER_TOKEN = 6
_SLICE_CHARACTERS = 1 << 16
_CUT_TOKENS = 64
"""A cut can split a word, whose halves take a few tokens more than the whole."""


class Tokenizer:
    """A byte-level BPE with added tokens such as `<|im_end|>`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._bytes: dict[int, bytes] = {}  # cache
        self._plain = _without_added_tokens(tokenizer)
        longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)))  # spelled with a character for each byte
        self.max_characters_per_token = longest * (_MAX_CHARACTERS_PER_BYTE if tokenizer.normalizer else 1)
        """The most characters of a text that one token can stand for."""

    @property
    def added_texts(self) -> tuple[str, ...]:
        """Spellings of the added tokens."""
        return tuple(self._added.values())

    def encode(self, text: str) -> list[int]:
        """Encodes a text and recognizes added tokens in it. Other threads run meanwhile."""
        return _encode_fast(self._tokenizer, text)

    def encode_plain(self, text: str) -> list[int]:
        """Encodes a text without recognizing added tokens. Other threads run meanwhile."""
        return _encode_fast(self._plain, text)

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
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns a token's UTF-8 bytes; none for ids beyond the vocabulary, which padded models can generate."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._make_bytes(token_id)
        return data

    def _make_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            return bytes(_BYTE_OF_CHARACTER[ord(character)] for character in token)
        except KeyError:  # not spelled in the alphabet: some vocabularies contain special tokens not declared as such
            return token.encode()

    def decode(self, token_ids: list[int]) -> str:
        """Decodes token ids and skips special tokens."""
        visible = (token_id for token_id in token_ids if token_id not in self.special_ids)
        return b"".join(map(self.token_bytes, visible)).decode(errors="replace")


def _encode_fast(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # A batch, because `encode` keeps other threads from running: for a second per megabyte.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return encoding.ids


def _without_added_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Returns a tokenizer that shares the model's memory."""
    plain = tokenizers.Tokenizer(tokenizer.model)
    plain.pre_tokenizer = tokenizer.pre_tokenizer
    if tokenizer.normalizer is not None:
        plain.normalizer = tokenizer.normalizer
    return plain


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads the tokenizer of the checkpoint in folder `path`.

    Raises:
        CheckpointError: `tokenizer.json` is missing, cannot be read, or is not a byte-level BPE.
    """
    file = path / "tokenizer.json"
    try:
        document = file.read_text(encoding="utf-8")
        tokenizer = tokenizers.Tokenizer.from_str(document)
    except FileNotFoundError as error:
        raise CheckpointError("the checkpoint has no tokenizer.json") from error
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"the checkpoint's tokenizer.json cannot be read: {error}") from error
    if not isinstance(tokenizer.decoder, ByteLevel) or tokenizer.pre_tokenizer is None:
        raise CheckpointError(
            "the checkpoint's tokenizer.json: expected a byte-level BPE, the only supported kind of tokenizer"
        )
    return Tokenizer(tokenizer)
