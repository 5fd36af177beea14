"""Enforces the reasoning budget of one sequence: when it is used up, the tokens of the closing tag are forced."""

from collections.abc import Sequence

import numpy as np

from glimpse.engine.checkpoint.grammar.matcher import BoolArray
from glimpse.engine.checkpoint.text.reasoning import ReasoningMeter
from glimpse.engine.protocol.sampling_params import ReasoningBudget


class ReasoningLimiter:
    """Counts the tokens of the reasoning and says which token must come next."""

    def __init__(self, budget: ReasoningBudget, tokens: Sequence[bytes]) -> None:
        """`tokens`: token id → bytes."""
        self._budget = budget
        self._tokens = tokens
        self._meter = ReasoningMeter(budget.tags)
        self._num_forced = 0
        """Tokens of the closing tag that were forced."""

    @property
    def forced_token_id(self) -> int | None:
        """The next token; None if any may come."""
        is_spent = self._num_forced > 0 or self._meter.num_tokens >= self._budget.max_tokens
        return self._budget.closing_token_ids[self._num_forced] if self._meter.is_reasoning and is_spent else None

    def restrict(self, allowed: BoolArray | None) -> BoolArray | None:
        """Returns a mask [tokens] with the forced token alone, or what the grammar allows if none is forced.

        A grammar does not allow the closing tag inside a character: its remaining bytes come first.
        """
        forced = self.forced_token_id
        if forced is None or (allowed is not None and not allowed[forced]):
            return allowed
        only = np.zeros(len(self._tokens), dtype=np.bool_)
        only[forced] = True
        return only

    def append_token(self, token_id: int) -> None:
        """Records the next token of the answer."""
        self._num_forced += token_id == self.forced_token_id
        self._meter.append(self._tokens[token_id])
