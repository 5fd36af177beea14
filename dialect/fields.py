"""The members of a request as a table, from the rules of the request's messages."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor

from glimpse.dialect.options import map_entry, message_type
from glimpse.dialect.rules import Dialect, Effect, FieldRules, MessageRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a request."""

    path: str
    """JSON path of the member, such as "messages[].content[].uuid"."""
    effect: Effect
    aliases: tuple[str, ...] = ()
    """Other names of the member."""
    reason: str = ""
    """Why it is refused or ignored: a sentence. Empty for a member with a field."""
    accepted: tuple[Any, ...] = ()
    """Values that ask for nothing, of a member without a field."""
    fields: tuple[FieldRules, ...] = ()
    """The fields that it may set, selected by JSON type. Empty for a member of another API."""


def members_of(dialect: Dialect, request: Descriptor) -> list[Member]:
    """Returns all members of the outermost object, and those without a field of the objects inside."""
    return list(_members(dialect, dialect.message(request), "", frozenset()))


def _members(dialect: Dialect, rules: MessageRules, prefix: str, enclosing: frozenset[str]) -> Iterator[Member]:
    """`enclosing` names the messages around this one, which may contain messages of its own type."""
    enclosing |= {rules.descriptor.full_name}
    for name, fields in _own_fields(dialect, rules).items():
        if not prefix:
            yield _member(name, fields)
        for field in fields:
            yield from _inner_members(dialect, field, prefix + name, enclosing)
    yield from _foreign(dialect, rules, prefix)


def _own_fields(dialect: Dialect, rules: MessageRules) -> dict[str, tuple[FieldRules, ...]]:
    """Returns the fields by JSON name, including those of flattened messages and those that shortcuts set."""
    own: dict[str, tuple[FieldRules, ...]] = {}
    for field in rules.fields:
        inner = (
            _own_fields(dialect, dialect.message(message_type(field.descriptor)))
            if field.inline
            else {field.name: (field,)}
        )
        for name, fields in inner.items():
            own[name] = own.get(name, ()) + fields
        own |= {name: (inner_field,) for name, inner_field in field.shortcuts}
    return own


def _member(name: str, fields: tuple[FieldRules, ...]) -> Member:
    aliases = tuple(alias for field in fields for alias in field.aliases)
    return Member(path=name, aliases=aliases, effect=fields[0].effect, fields=fields)


def _inner_members(dialect: Dialect, field: FieldRules, path: str, enclosing: frozenset[str]) -> Iterator[Member]:
    message = map_entry(field.descriptor)[1].message_type if field.is_map else field.descriptor.message_type
    if message is None or message.full_name in enclosing:
        return
    rules = dialect.message(message)
    path += "[]" if field.is_list else ""
    if not rules.union:
        yield from _members(dialect, rules, f"{path}.", enclosing)
    else:
        for choice in rules.fields:
            yield from _inner_members(dialect, choice, path, enclosing | {message.full_name})


def _foreign(dialect: Dialect, rules: MessageRules, prefix: str) -> Iterator[Member]:
    for member in rules.foreign:
        path = prefix + member.name
        yield Member(path=path, effect=member.effect, reason=member.reason, accepted=member.accepted)
    for field in rules.fields:
        if field.inline:
            yield from _foreign(dialect, dialect.message(message_type(field.descriptor)), prefix)
