"""Names and values that other libraries' documents write, and what becomes of each: one rule for every call.

What asks for nothing that Glimpse does not do anyway is accepted, and told once; anything else is refused with what to
write instead.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

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


def tell(message: str) -> None:
    """Logs a message, once in this process."""
    if message not in _told:
        _told.add(message)
        _logger.warning("%s", message)
