"""Text to token ids and token ids to bytes: byte-level BPE as a checkpoint's `tokenizer.json` describes it.

Knows nothing of conversations and media. This is the only file that knows the tokenizers library.
"""

from pathlib import Path

import tokenizers
from tokenizers.decoders import ByteLevel

from glimpse.engine.errors import CheckpointError


def _byte_characters() -> dict[int, int]:
    """Code point → byte of the alphabet in which byte-level BPE writes its tokens.

    The alphabet (GPT-2's `bytes_to_unicode`) keeps the bytes that print in Latin-1 and gives the others, in ascending
    order, the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()


class Tokenizer:
    """A byte-level BPE and its added tokens, those that stand in text as they are: `<|im_end|>` and its like."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._bytes: dict[int, bytes] = {}  # of the tokens that were asked for

    @property
    def added_texts(self) -> tuple[str, ...]:
        """How the added tokens are written."""
        return tuple(self._added.values())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which the added tokens are recognised."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is an added token."""
        # The library's own steps, but for the first, which looks for added tokens.
        steps = self._tokenizer
        normal = steps.normalizer.normalize_str(text) if steps.normalizer else text
        words = steps.pre_tokenizer.pre_tokenize_str(normal)
        return [token.id for word, _ in words for token in steps.model.tokenize(word)]

    def split(self, text: str) -> list[int | str]:
        """A text as its added tokens, by their ids, and the texts between them."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pieces: list[int | str] = []
        end = 0
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._added:
                pieces += [text[end:start], token_id]
                end = stop
        return [*pieces, text[end:]]

    def token_text(self, token_id: int) -> str:
        """A token alone as text; bytes that are not UTF-8 by themselves appear as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text's UTF-8; nothing for ids past the vocabulary, of which models may have some."""
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
        except KeyError:  # not written in the alphabet: some vocabularies hold special tokens that are not declared so
            return token.encode()

    def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens, special ones left out."""
        shown = (token_id for token_id in token_ids if token_id not in self.special_ids)
        return b"".join(map(self.token_bytes, shown)).decode(errors="replace")


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads the tokenizer of the checkpoint in the folder `path`.

    Raises:
        CheckpointError: `tokenizer.json` is missing, cannot be read, or is not a byte-level BPE.
    """
    file = path / "tokenizer.json"
    try:
        document = file.read_text(encoding="utf-8")
        tokenizer = tokenizers.Tokenizer.from_str(document)
    except FileNotFoundError as error:
        raise CheckpointError("the checkpoint has no tokenizer.json") from error
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"the checkpoint's tokenizer.json cannot be read: {error}") from error
    if not isinstance(tokenizer.decoder, ByteLevel) or tokenizer.pre_tokenizer is None:
        raise CheckpointError(
            "the checkpoint's tokenizer.json is not a byte-level BPE, the only kind that is supported"
        )
    return Tokenizer(tokenizer)
