"""Incremental detokenization: token ids to text in whole characters.

Each token is a few bytes of UTF-8; at most three bytes of an incomplete character are withheld.
"""

import codecs
from collections.abc import Collection, Sequence

from glimpse.engine.checkpoint.text.tokenizer import Tokenizer


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
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these tokens complete; bytes that are not UTF-8 become U+FFFD."""
        hidden, bytes_of = self._hidden_ids, self._tokenizer.token_bytes
        return self._decoder.decode(b"".join([bytes_of(each) for each in token_ids if each not in hidden]))

    def finish(self) -> str:
        """Returns what is left at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
