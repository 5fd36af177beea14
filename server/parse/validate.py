"""Checks messages against what their protos state: required fields and bounds.

Generic over message types. The checks of a type are compiled once and skip the fields that have no requirements.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from glimpse.dialect.options import descriptor_of, map_entry
from glimpse.dialect.rules import Dialect, FieldRules
from glimpse.server.field_path import FieldPath, path_text

_PROTOS = Dialect()
"""Bounds are those of the protos, whatever the dialect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A requirement that a message does not meet."""

    field: str
    """The proto path, such as "generation.top_p"."""
    message: str
    """What is wrong, starting with the quoted field."""
    code: str
    """missing_value or invalid_value."""


def violations(message: Message) -> list[Violation]:
    """Returns all violations, in the order of the fields. Floating-point numbers must be finite."""
    found: list[Violation] = []
    for check in _checks(descriptor_of(message)):
        check(message, None, found)
    return found


_Check: TypeAlias = Callable[[Message, FieldPath, list[Violation]], None]
"""Checks one field of the message at this path."""
_ValueCheck: TypeAlias = Callable[[Any, FieldPath, list[Violation]], None]
"""Checks the value at this path."""


@cache
def _checks(descriptor: Descriptor) -> tuple[_Check, ...]:
    checks = (_field_check(_PROTOS.field(field)) for field in descriptor.fields)
    return tuple(check for check in checks if check is not None)


def _field_check(field: FieldRules) -> _Check | None:
    name, required = field.descriptor.name, field.required
    has_presence = field.descriptor.has_presence
    value_checks = _value_checks(field)
    if not (value_checks or required):
        return None
    absence = _absence(field)

    def check(message: Message, path: FieldPath, found: list[Violation]) -> None:
        value = getattr(message, name)
        is_absent = not message.HasField(name) if has_presence else required and not value
        if not is_absent:
            num_found = len(found)
            for check_value in value_checks:
                check_value(value, (path, name), found)
                if len(found) > num_found:
                    break  # the elements of a list that is too long are not checked, one by one
        elif required:
            found.append(_violation((path, name), absence, "missing_value"))

    return check


def _absence(field: FieldRules) -> str:
    """Returns what is wrong without a required field. A message may not tell none from an empty one, or from 0."""
    if field.descriptor.has_presence or field.descriptor.enum_type is not None:
        return "required, but missing"
    if field.is_list or field.is_map:
        return "required, but missing or empty; send at least one element"
    if field.descriptor.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "required, but missing or empty; send at least one character"
    return "required, but missing or 0; send another number"


def _value_checks(field: FieldRules) -> tuple[_ValueCheck, ...]:
    if field.is_map:
        element = _element_check(map_entry(field.descriptor)[1])
        checks = (_bounds_check(field), element and _each(element, _entries))
    elif field.is_list:
        element = _element_check(field.descriptor)
        checks = (_bounds_check(field), element and _each(element, enumerate))
    else:
        checks = (_bounds_check(field), _element_check(field.descriptor))
    return tuple(check for check in checks if check is not None)


def _each(check: _ValueCheck, items: Callable[[Any], Iterable[tuple[int | str, Any]]]) -> _ValueCheck:
    def check_each(elements: Any, path: FieldPath, found: list[Violation]) -> None:
        for key, element in items(elements):
            check(element, (path, key), found)

    return check_each


def _entries(map_field: Any) -> Iterable[tuple[int | str, Any]]:
    return map_field.items()


def _element_check(field: FieldDescriptor) -> _ValueCheck | None:
    if field.message_type is not None:
        return _message_check(field.message_type) if _has_checks(field.message_type, set()) else None
    return _check_finite if _is_floating(field) else None


def _is_floating(field: FieldDescriptor) -> bool:
    return field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def _message_check(descriptor: Descriptor) -> _ValueCheck:
    def check_message(message: Message, path: FieldPath, found: list[Violation]) -> None:
        # Looked up at run time: a message may contain messages of its own type.
        for check in _checks(descriptor):
            check(message, path, found)

    return check_message


def _has_checks(descriptor: Descriptor, seen: set[Descriptor]) -> bool:
    """Returns whether a field of the message, or of a message in it, has a check. `seen` ends the search in cycles."""
    if descriptor in seen:
        return False
    seen.add(descriptor)
    for field in descriptor.fields:
        rules = _PROTOS.field(field)
        if rules.required or rules.min is not None or rules.max is not None or _is_floating(field):
            return True
        if field.message_type is not None and _has_checks(field.message_type, seen):
            return True
    return False


def _check_finite(value: float, path: FieldPath, found: list[Violation]) -> None:
    if not math.isfinite(value):
        found.append(_violation(path, f"expected a finite number, got {value}"))


def _bounds_check(field: FieldRules) -> _ValueCheck | None:
    """Returns the check of a number, or of the number of elements."""
    if field.min is None and field.max is None:
        return None
    smallest = -math.inf if field.min is None else field.min
    largest = math.inf if field.max is None else field.max
    counts = field.is_list or field.is_map
    number = "a number" if _is_floating(field.descriptor) else "an integer"
    wanted = f"{_wanted_range(field).removeprefix('of ')} elements" if counts else f"{number} {_wanted_range(field)}"

    def check_bounds(value: Any, path: FieldPath, found: list[Violation]) -> None:
        size = len(value) if counts else value
        # `_check_finite` reports numbers that are not finite.
        if math.isfinite(size) and not smallest <= size <= largest:
            got = f"{size:.7g}" if isinstance(size, float) else str(size)
            found.append(_violation(path, f"expected {wanted}, got {got}"))

    return check_bounds


def _wanted_range(field: FieldRules) -> str:
    if field.max is None:
        return f"of at least {field.min:g}"
    return f"of at most {field.max:g}" if field.min is None else f"from {field.min:g} to {field.max:g}"


def _violation(path: FieldPath, what: str, code: str = "invalid_value") -> Violation:
    field = path_text(path)
    return Violation(field=field, message=f"'{field}': {what}", code=code)
