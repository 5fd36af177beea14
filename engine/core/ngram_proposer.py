"""Proposes draft tokens for speculative decoding: those that followed when the last tokens occurred before.

Answers often repeat names and figures of the prompt, code, and lists. Draft tokens cost little to verify: a step that
reads all weights for one token has time for a few more. Rejected ones are dropped.

Whether a draft token would have been accepted shows even if it was never verified: the token that came is compared with
the one that would have been proposed. So a sequence that gets no draft tokens still tells how good they would be.

A model with a layer for it proposes draft tokens itself: see `ModelProposer`.
"""

from bisect import bisect_right
from collections.abc import Sequence

MATCH_TOKENS = 3
"""Length of the n-gram that is looked up. Shorter ones are seldom right, longer ones seldom found."""
MAX_DRAFT_TOKENS = 7
"""The most draft tokens of a sequence in a step."""
RUN_LENGTHS = (0, 1, 4)
"""Right predictions in a row from which a prediction counts as one of a new kind: the longer a passage has been
repeated, the likelier it goes on."""
EXPECTED_RATES = (0.4, 0.6, 0.8)
"""Share of right predictions of each kind, until there are some."""
NUM_EXPECTED = 4.0
"""How many predictions the expected share counts for."""
DECAY = 15 / 16
"""Weight of a prediction once there is another of its kind: about the last 16 of each kind count."""


class Acceptance:
    """How often predictions were right lately, by the number of right ones in a row before."""

    def __init__(self) -> None:
        self._num_right = [NUM_EXPECTED * rate for rate in EXPECTED_RATES]
        self._num_predicted = [NUM_EXPECTED] * len(EXPECTED_RATES)
        self._run_length = 0

    def record(self, is_right: bool | None) -> None:
        """Records whether the prediction of the next token was right; None if there was none."""
        if is_right is not None:
            kind = _kind(self._run_length)
            self._num_right[kind] = DECAY * self._num_right[kind] + is_right
            self._num_predicted[kind] = DECAY * self._num_predicted[kind] + 1
        self._run_length = self._run_length + 1 if is_right else 0

    def chances(self, num_tokens: int) -> list[float]:
        """Returns for each of the next draft tokens the probability that it and all before it are accepted."""
        chance, chances = 1.0, list[float]()
        for run_length in range(self._run_length, self._run_length + num_tokens):
            kind = _kind(run_length)
            chance *= self._num_right[kind] / self._num_predicted[kind]
            chances.append(chance)
        return chances


class NgramProposer:
    """Remembers where each n-gram of one sequence occurred last. The sequence may only grow."""

    def __init__(self, num_prompt_tokens: int = 0) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._followers: dict[tuple[int, ...], int] = {}  # n-gram → index of the token after its last occurrence
        self._num_read = 0
        self._acceptance = Acceptance()

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Returns `max_tokens` tokens that may follow the sequence; none if its last n-gram is new.

        A passage that reaches the end of the sequence is taken to repeat.
        """
        self._read(token_ids)
        start = self._followers.get(tuple(token_ids[-MATCH_TOKENS:]))
        if start is None:
            return ()
        period = len(token_ids) - start
        return tuple(token_ids[start + index % period] for index in range(max_tokens))

    def chances(self, token_ids: Sequence[int], max_tokens: int) -> list[float]:
        """Returns for each token of `propose` the probability that it and all before it are accepted.

        It is estimated from the generated tokens, those that were accepted as drafts and all others.
        """
        self._read(token_ids)
        matches = tuple(token_ids[-MATCH_TOKENS:]) in self._followers
        return self._acceptance.chances(max_tokens) if matches else []

    def _read(self, token_ids: Sequence[int]) -> None:
        for index in range(max(self._num_read, MATCH_TOKENS), len(token_ids)):
            ngram = tuple(token_ids[index - MATCH_TOKENS : index])
            if index >= self._num_prompt_tokens:
                start = self._followers.get(ngram)
                self._acceptance.record(None if start is None else token_ids[start] == token_ids[index])
            self._followers[ngram] = index
        self._num_read = len(token_ids)


class ModelProposer:
    """Remembers what the model has proposed to follow one sequence."""

    def __init__(self) -> None:
        self._start = 0  # index of the first of the tokens
        self._token_ids: tuple[int, ...] = ()
        self._acceptance = Acceptance()

    def offer(self, token_ids: Sequence[int], proposed: tuple[int, ...]) -> None:
        """Replaces the tokens that may follow a sequence."""
        self._read(token_ids)
        self._start, self._token_ids = len(token_ids), proposed

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        """Returns up to `max_tokens` tokens that may follow the sequence."""
        self._read(token_ids)
        return self._token_ids[:max_tokens]

    def chances(self, token_ids: Sequence[int], max_tokens: int) -> list[float]:
        """See `NgramProposer.chances`."""
        return self._acceptance.chances(len(self.propose(token_ids, max_tokens)))

    def _read(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids[self._start :]:
            if not self._token_ids:
                break
            is_right = token_id == self._token_ids[0]
            self._acceptance.record(is_right)
            self._start += 1
            self._token_ids = self._token_ids[1:] if is_right else ()


def _kind(run_length: int) -> int:
    return bisect_right(RUN_LENGTHS, run_length) - 1
