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


class Tokenizer:
    """A byte-level BPE with added tokens such as `<|im_end|>`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._bytes: dict[int, bytes] = {}  # cache

    @property
    def added_texts(self) -> tuple[str, ...]:
        """Spellings of the added tokens."""
        return tuple(self._added.values())

    def encode(self, text: str) -> list[int]:
        """Encodes a text and recognizes added tokens in it."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Encodes a text without recognizing added tokens."""
        # The library's own steps, except for the first, which splits at added tokens.
        steps = self._tokenizer
        normal = steps.normalizer.normalize_str(text) if steps.normalizer else text
        words = steps.pre_tokenizer.pre_tokenize_str(normal)
        return [token.id for word, _ in words for token in steps.model.tokenize(word)]

    def split(self, text: str) -> list[int | str]:
        """Splits a text into added tokens, as ids, and the texts between them."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
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
