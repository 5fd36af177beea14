"""Checks messages against what their protos state: required fields and bounds.

Generic over message types. The checks of a type are compiled once and skip the fields that have no requirements.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from glimpse.dialect.options import descriptor_of, map_entry
from glimpse.dialect.rules import FieldRules, field_rules
from glimpse.server.field_path import FieldPath, path_text


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
    checks = (_field_check(field_rules(field)) for field in descriptor.fields)
    return tuple(check for check in checks if check is not None)


def _field_check(field: FieldRules) -> _Check | None:
    name, required = field.descriptor.name, field.required
    has_presence = field.descriptor.has_presence
    value_checks = _value_checks(field)
    if not (value_checks or required):
        return None

    def check(message: Message, path: FieldPath, found: list[Violation]) -> None:
        value = getattr(message, name)
        if has_presence and not message.HasField(name):
            if required:
                found.append(_missing((path, name)))
        elif required and not has_presence and not value:
            found.append(_missing((path, name)))
        else:
            for check_value in value_checks:
                check_value(value, (path, name), found)

    return check


def _value_checks(field: FieldRules) -> tuple[_ValueCheck, ...]:
    if field.is_map:
        element = _element_check(map_entry(field.descriptor)[1])
        checks = (_count_check(field), element and _each_entry(element))
    elif field.is_list:
        element = _element_check(field.descriptor)
        checks = (_count_check(field), element and _each_element(element))
    else:
        checks = (_range_check(field), _element_check(field.descriptor))
    return tuple(check for check in checks if check is not None)


def _each_element(check: _ValueCheck) -> _ValueCheck:
    def check_list(elements: Any, path: FieldPath, found: list[Violation]) -> None:
        for index, element in enumerate(elements):
            check(element, (path, index), found)

    return check_list


def _each_entry(check: _ValueCheck) -> _ValueCheck:
    def check_map(entries: Any, path: FieldPath, found: list[Violation]) -> None:
        for key in entries:
            check(entries[key], (path, key), found)

    return check_map


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
        rules = field_rules(field)
        if rules.required or rules.min is not None or rules.max is not None or _is_floating(field):
            return True
        if field.message_type is not None and _has_checks(field.message_type, seen):
            return True
    return False


def _check_finite(value: float, path: FieldPath, found: list[Violation]) -> None:
    if not math.isfinite(value):
        found.append(_invalid(path, f"expected a finite number, got {value}"))


def _range_check(field: FieldRules) -> _ValueCheck | None:
    if field.min is None and field.max is None:
        return None
    smallest, largest, wanted = *_limits(field), _wanted_range(field)

    def check_range(value: float, path: FieldPath, found: list[Violation]) -> None:
        # `_check_finite` reports numbers that are not finite.
        if math.isfinite(value) and not smallest <= value <= largest:
            got = f"{value:.7g}" if isinstance(value, float) else str(value)
            found.append(_invalid(path, f"expected a number {wanted}, got {got}"))

    return check_range


def _count_check(field: FieldRules) -> _ValueCheck | None:
    if field.min is None and field.max is None:
        return None
    smallest, largest, wanted = *_limits(field), _wanted_range(field).removeprefix("of ")

    def check_count(elements: Any, path: FieldPath, found: list[Violation]) -> None:
        if not smallest <= len(elements) <= largest:
            found.append(_invalid(path, f"expected {wanted} elements, got {len(elements)}"))

    return check_count


def _limits(field: FieldRules) -> tuple[float, float]:
    return -math.inf if field.min is None else field.min, math.inf if field.max is None else field.max


def _wanted_range(field: FieldRules) -> str:
    if field.max is None:
        return f"of at least {field.min:g}"
    return f"of at most {field.max:g}" if field.min is None else f"from {field.min:g} to {field.max:g}"


def _missing(path: FieldPath) -> Violation:
    field = path_text(path)
    return Violation(field=field, message=f"'{field}': required, but missing", code="missing_value")


def _invalid(path: FieldPath, what: str) -> Violation:
    field = path_text(path)
    return Violation(field=field, message=f"'{field}': {what}", code="invalid_value")
