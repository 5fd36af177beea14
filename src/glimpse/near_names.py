"""Finds the known name that an unknown one was meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches

_LIKENESS = 0.88
"""The least likeness of two names, as difflib measures it: 1 is equality."""
_MIN_CHARACTERS, _MAX_CHARACTERS = 4, 64
"""Shorter names resemble too many, longer ones resemble none."""


class NearNames:
    """The known names of one object, compared without case, underscores and dashes: `maxTokens` is `max_tokens`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_letters = {_letters(name): name for name in names}

    def nearest(self, name: str, also_known: Iterable[str] = ()) -> str | None:
        """Returns the known name that resembles this unknown one most; None if none does."""
        if not _MIN_CHARACTERS <= len(name) <= _MAX_CHARACTERS:
            return None
        letters = _letters(name)
        known = self._by_letters | {_letters(each): each for each in also_known}
        matches = get_close_matches(letters, known, n=1, cutoff=_LIKENESS) or _anagrams(letters, known)
        return known[matches[0]] if matches else None


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _anagrams(letters: str, known: Iterable[str]) -> list[str]:
    """Returns the names of the same letters: two that changed places."""
    in_order = sorted(letters)
    return [each for each in known if sorted(each) == in_order]
