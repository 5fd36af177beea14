"""Token ids to text as they come, in whole characters.

Knows no stops and no requests. Each token is a few bytes of UTF-8; at most three bytes of an unfinished character wait.
"""

import codecs
from collections.abc import Collection, Sequence

from glimpse.engine.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer. All its pieces together are `Tokenizer.decode` of all its tokens."""

    def __init__(self, tokenizer: Tokenizer, *, hidden_ids: Collection[int] | None = None) -> None:
        """
        Args:
            tokenizer: The checkpoint's.
            hidden_ids: Tokens without text. Default: the special ones.
        """
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if hidden_ids is None else hidden_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete. Hidden tokens have none; bytes that are not UTF-8 become U+FFFD."""
        shown = (token_id for token_id in token_ids if token_id not in self._hidden_ids)
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, shown)))

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character that was not completed."""
        return self._decoder.decode(b"", final=True)
