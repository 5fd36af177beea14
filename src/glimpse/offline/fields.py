"""Errors about the arguments of `LLM`, and checks that several parsers share."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from glimpse.engine.protocol.other_names import OtherName
from glimpse.media import errors
from glimpse.media.errors import MediaErrorCode
from glimpse.near_names import closest

_FLAG = re.compile(r"(?:the server's )?(?<!')--([a-z-]+)")
"""An option in the words of the server's errors; it is an argument of `LLM`."""


class InputError(ValueError):
    """An input that cannot be used. The message begins with the field at fault, such as `messages[0].content[1]`."""

    def __init__(self, field: str, message: str, code: MediaErrorCode | None = None) -> None:
        named = _FLAG.sub(lambda flag: flag[1].replace("-", "_"), message)
        super().__init__(f"'{field}': {named}")
        self.code = code
        """Why a medium was refused; None if the error is not about the contents of a medium."""


blaming = partial(errors.blaming, InputError)
"""Raises InputError for a MediaError in its block, about this field."""

_LIKENESS = 0.7
"""Least likeness of a name to the one that is said to be meant. With difflib's own, 0.6, `rope_scaling` resembles
`prefix_caching`."""


def known_fields(value: object, field: str, *, known: Sequence[str]) -> Mapping[str, Any]:
    """Returns the value, if it is a dict with no other keys than the known ones. Raises InputError."""
    if not isinstance(value, Mapping):
        raise InputError(field, f"expected a dict, got {type(value).__name__}")
    for name in value:
        if name not in known:
            raise InputError(f"{field}.{name}", f"unknown field, expected one of {', '.join(known)}")
    return value


def check_name(name: str, value: object, known: Collection[str], others: Mapping[str, OtherName], call: str) -> bool:
    """Returns whether an argument is one of `known`; False: it asks for nothing.

    Raises:
        InputError: it asks for something that does not exist.
        TypeError: there is no such argument.
    """
    if name in known:
        return True
    if (other := others.get(name)) is None:
        near = closest(name, [*known, *others], likeness=_LIKENESS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise TypeError(f"{call} got an unexpected keyword argument {name!r}{hint}")
    try:
        other.check(value, f"{name}={value!r}")
    except ValueError as error:
        raise InputError(name, str(error)) from None
    return False
