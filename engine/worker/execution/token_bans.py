"""Bans tokens: those outside of `allowed_token_ids`, and those that would complete one of `bad_words`."""

from collections import deque

from torch import Tensor

from glimpse.engine.protocol.sampling_params import SamplingParams


class TokenBans:
    """The bans of one sequence. False if it has none."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._allowed = list(sampling.allowed_token_ids or ())
        self._bad_words = sampling.bad_word_token_ids
        longest = max(map(len, self._bad_words), default=1)
        self._recent: deque[int] = deque(maxlen=longest - 1)
        """The last tokens of the answer, as many as the longest bad word has before its last."""

    def __bool__(self) -> bool:
        return bool(self._allowed or self._bad_words)

    def append_token(self, token_id: int) -> None:
        """Records the next token of the answer."""
        self._recent.append(token_id)

    def apply(self, row: Tensor) -> bool:
        """Bans tokens in one row of logits in place, float32 [vocab_size]. Returns whether any token is left."""
        if self._allowed:
            kept = row[self._allowed]
            row.fill_(float("-inf"))
            row[self._allowed] = kept
        if banned := self._completions():
            row[banned] = float("-inf")
        return bool(row.isfinite().any())

    def _completions(self) -> list[int]:
        """Returns the tokens that would complete a bad word."""
        recent = tuple(self._recent)
        return [word[-1] for word in self._bad_words if len(word) == 1 or recent[-len(word) + 1 :] == word[:-1]]
