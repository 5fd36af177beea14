"""Stop texts in a text that comes in pieces. Knows no tokens."""

from collections.abc import Sequence


class StopMatcher:
    """Ends a text where the first stop text is complete, and lets out no part of it.

    What is let out does not depend on how the text was cut into pieces: of several stop texts the one that is complete
    first wins, and of those complete at the same place the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """
        Args:
            stops: Texts of at least one character.
        """
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched = False
        """A stop text was found; nothing more comes out."""

    def feed(self, piece: str) -> str:
        """The text that can be let out now that `piece` has come."""
        if self.matched:
            return ""
        text = self._held + piece
        cut = self._cut(text)
        self.matched = cut is not None
        end = self._safe_length(text) if cut is None else cut
        self._held = "" if self.matched else text[end:]
        return text[:end]

    def finish(self) -> str:
        """What was held back, now that nothing follows that could make it a stop text."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> int | None:
        """Where the stop text begins that is complete first."""
        found = ((text.find(stop), len(stop)) for stop in self._stops)
        ends = [(start + length, start) for start, length in found if start >= 0]
        return min(ends)[1] if ends else None

    def _safe_length(self, text: str) -> int:
        """Length of the text before the first place where a stop text may have begun."""
        first = max(0, len(text) - self._longest + 1)
        for start in range(first, len(text)):
            rest = text[start:]
            if any(stop.startswith(rest) for stop in self._stops):
                return start
        return len(text)
