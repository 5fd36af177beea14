"""Escapes client text that spells special tokens, so that it is tokenized as plain text.

While the chat template runs, random marks replace such text. The rendered prompt is then split at
its special tokens, and the marks in the remaining pieces become the client's text again. Independent of templates and
of the tokenizer.
"""

import re
import secrets
from collections.abc import Sequence


class SpecialTokenPatterns:
    """Finds spellings of special tokens in client text."""

    def __init__(self, spellings: Sequence[str]) -> None:
        longest_first = sorted((re.escape(spelling) for spelling in spellings), key=len, reverse=True)
        self._pattern = re.compile("|".join(longest_first) or r"(?!)")
        prefixes = {spelling[:size] for spelling in spellings for size in range(1, len(spelling))}
        self._prefixes = tuple(sorted(prefixes, key=len, reverse=True))

    def new_escaper(self) -> "SpecialTokenEscaper":
        return SpecialTokenEscaper(self)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the spans that spell a special token, and a final one that the next text could complete to one."""
        spans = [match.span() for match in self._pattern.finditer(text)]
        body = text.rstrip()  # a template may strip it
        if body.endswith(self._prefixes):
            size = next(len(prefix) for prefix in self._prefixes if body.endswith(prefix))
            start = max(len(body) - size, spans[-1][1] if spans else 0)
            if start < len(body):
                spans.append((start, len(body)))
        return spans


class SpecialTokenEscaper:
    """Escapes and unescapes the texts of one conversation."""

    def __init__(self, patterns: SpecialTokenPatterns) -> None:
        self._patterns = patterns
        self._nonce = secrets.token_hex(8)
        self._escaped: list[str] = []
        # The space shows afterwards whether the template stripped the text.
        self.end_mark = self._mark("end") + " "
        """Marks where the prompt ends, in a message that the model continues."""

    def __bool__(self) -> bool:
        return bool(self._escaped)

    def escape(self, text: str) -> str:
        """Replaces spellings of special tokens with marks."""
        pieces: list[str] = []
        end = 0
        for start, stop in self._patterns.spans(text):
            pieces += [text[end:start], self._mark(str(len(self._escaped)))]
            self._escaped.append(text[start:stop])
            end = stop
        return "".join([*pieces, text[end:]])

    def unescape(self, text: str) -> str:
        """Replaces marks with the text they stand for."""
        parts = re.split(self._mark(r"(\d+)"), text)
        return "".join(self._escaped[int(part)] if index % 2 else part for index, part in enumerate(parts))

    def up_to_end_mark(self, text: str) -> str | None:
        """Returns the text before the end mark; None if there is no such mark."""
        before, mark, after = text.rpartition(self.end_mark.rstrip())
        if not mark:
            return None
        return before if after.startswith(" ") else before.rstrip()

    def _mark(self, index: str) -> str:
        # Private-use characters: no tokenizer has a token with them, and no template looks for them.
        return f"\ue000{self._nonce}-{index}\ue001"
