"""Token ids to text as they come, in whole characters.

Knows no stops and no requests. Each token is a few bytes of UTF-8; at most three bytes of an unfinished character wait.
"""

import codecs
from collections.abc import Sequence

from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one answer. All its pieces together are `Tokenizer.decode` of all its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete. Special tokens have none; bytes that are not UTF-8 become U+FFFD."""
        tokenizer = self._tokenizer
        shown = (token_id for token_id in token_ids if token_id not in tokenizer.special_ids)
        return self._decoder.decode(b"".join(map(tokenizer.token_bytes, shown)))

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD for a character that was not completed."""
        return self._decoder.decode(b"", final=True)
