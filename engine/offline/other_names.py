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
_told: set[str] = set()
"""What has been said in this process."""


@dataclass(frozen=True, slots=True)
class OtherName:
    """A name of another library that has no meaning here."""

    reason: str
    """Why, or what to write instead."""
    accepted: Collection[object] | Callable[[object], bool] = ()
    """Values that ask for nothing, or a test for them. The first is the other library's default: nothing is said."""

    @property
    def is_switch(self) -> bool:
        """Whether the flag has no value."""
        return not callable(self.accepted) and isinstance(next(iter(self.accepted), None), bool)

    def check(self, value: object, written: str) -> None:
        """Raises ValueError if the value, which the caller wrote like this, asks for something."""
        if callable(self.accepted):
            accepts, is_default = self.accepted(value), False
        else:
            same = [value == each and isinstance(value, bool) is isinstance(each, bool) for each in self.accepted]
            accepts, is_default = any(same), same[:1] == [True]
        if not accepts:
            raise ValueError(f"{self.reason}, got {value!r}")
        if not is_default:
            tell(f"{written} changes nothing: {self.reason}")


def anything(_: object) -> bool:
    """Accepts every value."""
    return True


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
    try:
        other.check(value, f"{name}={value!r}")
    except ValueError as error:
        raise InputError(name, str(error)) from None
    return False


def tell(message: str) -> None:
    """Logs a message, once in this process."""
    if message not in _told:
        _told.add(message)
        _logger.warning("%s", message)
