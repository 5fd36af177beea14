"""Matches stop strings in streamed text."""

from collections.abc import Sequence


class StopMatcher:
    """Ends a text before or after the first stop string, and withholds text that may be the beginning of one.

    The result does not depend on how the text is split. The stop string that is complete first wins; of those that are
    complete at the same character, the longest.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """
        Args:
            stops: Non-empty strings.
            include: The stop string is part of the text.
        """
        self._stops = tuple(stops)
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self._withheld = ""
        self.matched = ""
        """The stop string, once one was found; `feed` and `finish` return nothing from then on."""

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """Adds the next text and returns what can be released.

        Args:
            may_end: False: a stop string that is complete in this text does not count.
        """
        if not self._stops:
            return text
        if self.matched:
            return ""
        num_withheld = len(self._withheld)
        text = self._withheld + text
        cut = self._cut(text, num_withheld) if may_end else None
        end, self.matched = cut or (self._safe_length(text), "")
        self._withheld = "" if self.matched else text[end:]
        return text[:end]

    def finish(self) -> str:
        """Returns the withheld text at the end of the stream."""
        withheld, self._withheld = self._withheld, ""
        return withheld

    def _cut(self, text: str, num_before: int) -> tuple[int, str] | None:
        """Returns the stop string that is complete first, behind where the text ends: at its start, or its end.

        It is not complete in the first `num_before` characters.
        """
        found = ((text.find(stop, max(0, num_before - len(stop) + 1)), stop) for stop in self._stops)
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        end, start, stop = min(ends)
        return (end if self._include else start), stop

    def _safe_length(self, text: str) -> int:
        """Returns the length of the text before the first possible beginning of a stop string."""
        first = max(0, len(text) - self._longest + 1)
        for start in range(first, len(text)):
            rest = text[start:]
            if any(stop.startswith(rest) for stop in self._stops):
                return start
        return len(text)
