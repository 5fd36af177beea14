"""Client text that only looks like a special token, and how it stays text.

While the chat template runs, each such place is a mark that no client can guess; afterwards the marks become the
client's words again, in pieces of the prompt where no special token is looked for. Knows no template and no tokens.
"""

import re
import secrets
from collections.abc import Sequence


class SpecialTokenPatterns:
    """The spellings that are never taken from a client's text."""

    def __init__(self, spellings: Sequence[str]) -> None:
        longest_first = sorted((re.escape(spelling) for spelling in spellings), key=len, reverse=True)
        self._pattern = re.compile("|".join(longest_first) or r"(?!)")
        beginnings = {spelling[:size] for spelling in spellings for size in range(1, len(spelling))}
        self._beginnings = tuple(sorted(beginnings, key=len, reverse=True))

    def marks(self) -> "SpecialTokenEscaper":
        """SpecialTokenEscaper for one conversation."""
        return SpecialTokenEscaper(self)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where a text spells a token, or ends in the beginning of one, which the next text could complete."""
        spans = [match.span() for match in self._pattern.finditer(text)]
        body = text.rstrip()  # a template may strip it
        if body.endswith(self._beginnings):
            size = next(len(beginning) for beginning in self._beginnings if body.endswith(beginning))
            start = max(len(body) - size, spans[-1][1] if spans else 0)
            if start < len(body):
                spans.append((start, len(body)))
        return spans


class SpecialTokenEscaper:
    """What was marked in the texts of one conversation."""

    def __init__(self, lookalikes: SpecialTokenPatterns) -> None:
        self._lookalikes = lookalikes
        self._nonce = secrets.token_hex(8)
        self._literals: list[str] = []
        # With a space, of which it can be seen afterwards whether a template strips what it shows.
        self.end = self._mark("end") + " "
        """Marks the end of a text that the prompt must end with; nothing else has this mark."""

    def __bool__(self) -> bool:
        return bool(self._literals)

    def protect(self, text: str) -> str:
        """The text with marks in the place of lookalikes."""
        pieces: list[str] = []
        end = 0
        for start, stop in self._lookalikes.spans(text):
            pieces += [text[end:start], self._mark(str(len(self._literals)))]
            self._literals.append(text[start:stop])
            end = stop
        return "".join([*pieces, text[end:]])

    def restore(self, text: str) -> str:
        """The text with the client's words in the place of marks."""
        parts = re.split(self._mark(r"(\d+)"), text)
        return "".join(self._literals[int(part)] if index % 2 else part for index, part in enumerate(parts))

    def before_end(self, text: str) -> str | None:
        """The text up to the mark of the end; None where there is none."""
        before, mark, after = text.rpartition(self.end.rstrip())
        if not mark:
            return None
        return before if after.startswith(" ") else before.rstrip()

    def _mark(self, index: str) -> str:
        # Private-use characters: no tokenizer has a token of them, no template looks for them.
        return f"\ue000{self._nonce}-{index}\ue001"
