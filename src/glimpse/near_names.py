"""Finds the known name that an unknown one was meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches

_LIKENESS = 0.88
"""The least likeness of two names of an object's members, as difflib measures it: 1 is equality."""
_MIN_CHARACTERS, _MAX_CHARACTERS = 4, 64
"""Shorter names resemble too many, longer ones resemble none."""


def closest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Returns the known name that resembles an unknown one most, letter by letter; None if none is so alike."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


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
        meant = closest(letters, known, likeness=_LIKENESS) or _anagram(letters, known)
        return None if meant is None else known[meant]


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _anagram(letters: str, known: Iterable[str]) -> str | None:
    """Returns a name of the same letters: two that changed places."""
    in_order = sorted(letters)
    return next((each for each in known if sorted(each) == in_order), None)
