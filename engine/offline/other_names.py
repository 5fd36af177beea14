"""Names and values that other libraries' documents write, and what becomes of each: one rule for every call.

What asks for nothing that Glimpse does not do anyway is accepted, and told once; anything else is refused with what to
write instead.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from glimpse.engine.offline.fields import InputError

_logger = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()
"""What has been said in this process."""


@dataclass(frozen=True, slots=True)
class OtherName:
    """A name of another library that has no meaning here."""

    reason: str
    """Why, or what to write instead."""
    accepted: Collection[object] | Callable[[object], bool] = ()
    """Values that ask for nothing, or a test for them. The first is the other library's default: nothing is said."""

    def accepts(self, value: object) -> bool:
        """Returns whether the value asks for nothing."""
        if callable(self.accepted):
            return self.accepted(value)
        return any(type(value) is type(each) and value == each for each in self.accepted)

    def is_default(self, value: object) -> bool:
        """Returns whether the value is that of a caller who says nothing."""
        return not callable(self.accepted) and value in list(self.accepted)[:1]


def check_name(name: str, value: object, known: Collection[str], others: Mapping[str, OtherName], call: str) -> bool:
    """Returns whether an argument is one of `known`; False: it asks for nothing.

    Raises:
        InputError: it asks for something that does not exist.
        TypeError: there is no such argument.
    """
    if name in known:
        return True
    if (other := others.get(name)) is None:
        (*closest,) = get_close_matches(name, [*known, *others], n=1)
        hint = f"; did you mean {closest[0]!r}?" if closest else ""
        raise TypeError(f"{call} got an unexpected keyword argument {name!r}{hint}")
    if not other.accepts(value):
        raise InputError(name, f"{other.reason}, got {value!r}")
    if not other.is_default(value):
        tell(name, f"{name}={value!r} changes nothing: {other.reason}")
    return False


def tell(name: str, message: str) -> None:
    """Logs a message about an argument, once in this process."""
    if (name, message) not in _told:
        _told.add((name, message))
        _logger.warning("%s", message)
