"""Guesses what an answer says next: what followed when its last tokens stood in prompt or answer before.

Answers often repeat: names and figures of the prompt, code, lists. A guess costs little to check, for a step that
reads all weights for one token has time for some more, and what is not so is dropped. Knows token ids alone.
"""

from collections.abc import Sequence

MATCH_TOKENS = 3
"""So many last tokens are looked for: of fewer the guesses are seldom right, of more they are seldom made."""
MAX_DRAFT_TOKENS = 7
"""The most guesses for one sequence in a step. On a CPU a step with 8 tokens takes 1.07 times as long as with one."""


class NgramProposer:
    """Remembers where each few tokens of one sequence stood last. Its tokens only ever grow."""

    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], int] = {}  # tokens → index of the one that followed when they last stood
        self._num_read = 0

    def guess(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """At most so many tokens that may follow all of the sequence's; none where nothing is known."""
        for index in range(max(self._num_read, MATCH_TOKENS), len(token_ids)):
            self._followers[tuple(token_ids[index - MATCH_TOKENS : index])] = index
        self._num_read = len(token_ids)
        start = self._followers.get(tuple(token_ids[-MATCH_TOKENS:]))
        return () if start is None else tuple(token_ids[start : start + max_tokens])
