"""Waits for the trigger of an answer's grammar: until then its tokens are sampled as if there were no grammar."""

import re
from collections.abc import Sequence

from glimpse.engine.checkpoint.text.reasoning import ReasoningMeter
from glimpse.engine.protocol.sampling_params import Grammar, GrammarTrigger

_MAX_BYTES = 64
"""Bytes of the latest tokens that are searched for triggers. No trigger is longer."""
_NEVER = re.compile(rb"(?!)")


class GrammarWatcher:
    """Reads the tokens of one answer until they trigger its grammar."""

    def __init__(self, grammar: Grammar, tokens: Sequence[bytes]) -> None:
        """
        Args:
            grammar: With a trigger.
            tokens: Token id → bytes.
        """
        trigger = grammar.trigger or GrammarTrigger()
        self._tokens = tokens
        self._token_ids = frozenset(trigger.token_ids)
        self._texts = re.compile("|".join(map(re.escape, trigger.texts)).encode()) if trigger.texts else _NEVER
        self._start = re.compile(trigger.start_pattern.encode()) if trigger.start_pattern else _NEVER
        self._searches = bool(trigger.texts or trigger.start_pattern)
        self._meter = None if grammar.reasoning is None else ReasoningMeter(grammar.reasoning)
        self._latest: list[bytes] = []
        self._is_start = True
        """`_latest` holds all tokens of the answer, without its reasoning."""

    def append(self, token_id: int) -> int:
        """Reads the next token. Returns the number of last tokens that have a part of the trigger; 0: none yet."""
        token = self._tokens[token_id]
        if self._meter is not None and self._reasons(self._meter, token):
            self._latest.clear()
            self._is_start = True
            return 0
        if token_id in self._token_ids:
            return 1
        if not self._searches:
            return 0
        self._latest.append(token)
        begin = self._find(b"".join(self._latest))
        if begin is not None:
            return self._num_tokens_from(begin)
        self._forget()
        return 0

    def before(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the first of the tokens that may come next, none of which completes the trigger.

        Tokens after one that may end the reasoning are left out too.
        """
        text = b"".join(self._latest)
        is_reasoning = self._meter is not None and self._meter.is_reasoning
        for index, token_id in enumerate(token_ids):
            text += self._tokens[token_id]
            if token_id in self._token_ids or self._find(text, anywhere=is_reasoning) is not None:
                return token_ids[:index]
        return token_ids

    @staticmethod
    def _reasons(meter: ReasoningMeter, token: bytes) -> bool:
        """Reads a token; returns whether it has a part of the reasoning."""
        was_reasoning = meter.is_reasoning
        meter.append(token)
        return was_reasoning or meter.is_reasoning

    def _find(self, text: bytes, *, anywhere: bool = False) -> int | None:
        """Returns where a trigger begins in the latest text; None if there is none."""
        found = self._texts.search(text)
        if found is None and anywhere:
            found = self._start.search(text)
        elif found is None and self._is_start:
            found = self._start.match(text)
        return None if found is None else found.start()

    def _num_tokens_from(self, begin: int) -> int:
        """Returns the number of latest tokens that have a byte from `begin` on."""
        end = sum(map(len, self._latest))
        for count, token in enumerate(reversed(self._latest), start=1):
            end -= len(token)
            if end <= begin:
                return count
        return len(self._latest)

    def _forget(self) -> None:
        """Forgets tokens that no trigger can begin in any more."""
        num_bytes = sum(map(len, self._latest))
        while num_bytes - len(self._latest[0]) >= _MAX_BYTES:
            num_bytes -= len(self._latest.pop(0))
            self._is_start = False
