"""Counts the tokens of an answer's reasoning, without its tags."""

from glimpse.engine.checkpoint.text.reasoning.parser import ReasoningParser
from glimpse.engine.protocol.sampling_params import ReasoningTags


class ReasoningMeter:
    """Reads the tokens of one answer. The engine and the front end count alike."""

    def __init__(self, tags: ReasoningTags) -> None:
        self._parser = ReasoningParser(tags)
        self._num_tokens = 0
        self._num_closing = 0
        """Tokens since then that may belong to the closing tag."""

    @property
    def is_reasoning(self) -> bool:
        """The reasoning has begun and has not ended."""
        return self._parser.is_reasoning

    @property
    def num_tokens(self) -> int:
        """Tokens of the reasoning so far. Those that may belong to the closing tag count until it is complete."""
        return self._num_tokens + self._num_closing

    def append(self, token: bytes) -> None:
        """Reads the next token."""
        if self._parser.has_answered:
            return
        was_reasoning = self._parser.is_reasoning
        self._parser.feed(token.decode("latin-1"))  # tags are ASCII, and a token may end inside a character
        if not was_reasoning:
            return
        self._num_closing += 1
        if not self._parser.is_reasoning:
            self._num_closing = 0
        elif not self._parser.is_closing:
            self._num_tokens += self._num_closing
            self._num_closing = 0
