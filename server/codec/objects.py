"""Reads JSON values into messages, by the rules of the dialect.

Each message type is compiled once into a table from JSON name to the function that sets the field.
"""

from collections import defaultdict
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from glimpse.dialect.options import message_type
from glimpse.dialect.rules import Dialect, Effect, FieldRules, ForeignMember, JsonKind, MessageRules, OneofRules
from glimpse.near_names import NearNames
from glimpse.server.codec.field_values import DecodeContext, Setter, field_setter
from glimpse.server.codec.oneofs import TagReader, Target, exclusive, variant_setter
from glimpse.server.codec.scalars import decode_error, kind_of, wrong_type
from glimpse.server.field_path import FieldPath

_Choice: TypeAlias = tuple[frozenset[JsonKind], Setter]
"""One of the fields that share a JSON name: the JSON types of its values, and its setter."""


class MessageReader:
    """Reads JSON values into messages of any type."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._value_setter = cache(self._new_setter)

    def read(
        self, descriptor: Descriptor, message: Message, value: Any, path: FieldPath, context: DecodeContext
    ) -> None:
        """Reads a JSON value into a message of this type. Raises DecodeError."""
        self._value_setter(descriptor)(message, value, path, context)

    def _new_setter(self, descriptor: Descriptor) -> Setter:
        rules = self.dialect.message(descriptor)
        if rules.union:
            return _by_kind([(field.kinds, field_setter(field, self.read)) for field in rules.fields])
        choices: list[_Choice] = [(frozenset((JsonKind.OBJECT,)), self._object_setter(rules))]
        if rules.scalar_field is not None:
            choices.append((frozenset((JsonKind.STRING,)), self._bare_string_setter(rules, rules.scalar_field)))
        if rules.list_field is not None:
            set_field = field_setter(rules.list_field, self.read)
            choices.append((frozenset((JsonKind.ARRAY,)), _renaming(rules.list_field.name, set_field)))
        return _by_kind(choices)

    def _object_setter(self, rules: MessageRules) -> Setter:
        match rules.members:
            case (OneofRules(internal=True) as oneof,):
                return variant_setter(oneof, self.read)
            case _:
                return _ObjectReader(rules, self).read

    def _bare_string_setter(self, rules: MessageRules, field: FieldRules) -> Setter:
        innermost = rules.innermost_scalar_field
        set_field = field_setter(field, self.read)
        return _renaming(innermost.name, set_field) if field.inline and innermost is not None else set_field


def _renaming(name: str, set_field: Setter) -> Setter:
    """Returns the setter of a field by a bare value: the document has no object with a member of this name."""

    def set_and_record(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        context.record_name((path, name), path)
        set_field(message, value, path, context)

    return set_and_record


def _by_kind(choices: list[_Choice]) -> Setter:
    """Returns a setter that selects the choice by the JSON type of the value."""
    setters: dict[JsonKind | None, Setter] = {}
    for kinds, set_field in choices:
        for kind in kinds:
            setters.setdefault(kind, set_field)
    expected = frozenset(kind for kinds, _ in choices for kind in kinds)

    def set_by_kind(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        set_field = setters.get(kind_of(value))
        if set_field is None:
            raise wrong_type(expected, value, path)
        set_field(message, value, path, context)

    return set_by_kind


class _ObjectReader:
    """Reads the members of a JSON object into a message."""

    def __init__(self, rules: MessageRules, reader: MessageReader) -> None:
        table = _MemberTable(reader)
        table.add_message(rules, _identity)
        self._setters = {name: _shared_name(choices) for name, choices in table.choices.items()}
        self._tags = tuple(table.tags)
        self._exclusive_names = tuple(table.exclusive_names)
        self._ignored = frozenset(table.ignored)
        self._foreign = dict(table.foreign)
        self._closed = rules.closed
        known = (name for tag in self._tags for name in tag.known)
        hints = (name for name, member in self._foreign.items() if member.effect is Effect.IGNORED)
        self._names = NearNames([*self._setters, *known, *hints])

    def read(self, message: Message, members: dict[str, Any], path: FieldPath, context: DecodeContext) -> None:
        for names, relation in self._exclusive_names:
            _refuse_second(names, relation, members, path)
        used = [name for tag in self._tags for name in tag.read(message, members, path, context)]
        for name, value in members.items():
            if value is None:
                continue
            set_field = self._setters.get(name)
            if set_field is not None:
                set_field(message, value, (path, name), context)
            elif name in self._foreign:
                _read_foreign(self._foreign[name], value, (path, name), context)
            elif name not in self._ignored and name not in used:
                self._read_unknown(name, path, context)

    def _read_unknown(self, name: str, path: FieldPath, context: DecodeContext) -> None:
        """Reports an unknown member, or refuses it if the message is closed or its name resembles a known one."""
        if context.is_full and not self._closed:
            return
        also_known = (context.stream_member,) if path is None and context.stream_member else ()
        meant = self._names.nearest(name, also_known)
        if meant is not None and meant != name:
            raise decode_error(f"unknown field; did you mean '{meant}'?", (path, name), "unsupported")
        if self._closed:
            raise decode_error("unknown field", (path, name), "unsupported")
        context.report_ignored((path, name))


class _MemberTable:
    """The members of one JSON object, including those of flattened messages."""

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader
        self.choices = defaultdict[str, list[_Choice]](list)
        self.tags: list[TagReader] = []
        self.exclusive_names: list[tuple[tuple[str, ...], str]] = []
        """Names of which an object has one at most, and how a second one relates to the first, for the error."""
        self.ignored: set[str] = set()
        self.foreign: dict[str, ForeignMember] = {}

    def add_message(self, rules: MessageRules, target: Target) -> None:
        self.ignored.update(name for name, _ in rules.constants)
        self.foreign.update((member.name, member) for member in rules.foreign)
        for member in rules.members:
            match member:
                case FieldRules():
                    self.add_field(member, target)
                case OneofRules():
                    self._add_oneof(member, target)

    def add_field(self, field: FieldRules, target: Target) -> None:
        if field.inline:
            self.add_message(self._reader.dialect.message(message_type(field.descriptor)), _inside(target, field))
            return
        if field.aliases:
            self.exclusive_names.append((field.names, "the same as"))
        set_field = field_setter(field, self._reader.read)
        set_field = _on_target(target, _recording_alias(field, set_field) if field.aliases else set_field)
        for name in field.names:
            self.choices[name].append((field.kinds, set_field))
        self._add_shortcuts(field, target)

    def _add_shortcuts(self, field: FieldRules, target: Target) -> None:
        if field.shortcuts:
            names = (*field.names, *(name for name, _ in field.shortcuts))
            self.exclusive_names.append((names, "not allowed with"))
        for name, inner in field.shortcuts:
            self.choices[name].append((inner.kinds, _on_target(target, _shortcut_setter(field, inner, self._reader))))

    def _add_oneof(self, oneof: OneofRules, target: Target) -> None:
        if oneof.tag is not None:
            tag = TagReader(oneof, target, self._reader.read, optional=target is not _identity)
            self.tags.append(tag)
            self.ignored.update(tag.names)
        else:
            self._add_untagged_oneof(oneof, target)

    def _add_untagged_oneof(self, oneof: OneofRules, target: Target) -> None:
        tables = [(field, _MemberTable(self._reader)) for field in oneof.fields]
        scalar = self._reader.dialect.message(oneof.descriptor.containing_type).scalar_field
        for field, table in tables:
            table.add_field(field, target)
        names = frozenset(name for _, table in tables for name in table.choices)
        for field, table in tables:
            self.tags += table.tags
            self.exclusive_names += table.exclusive_names
            self.ignored |= table.ignored
            self.foreign |= table.foreign
            for name, choices in table.choices.items():
                self.choices[name] += [
                    (kinds, exclusive(set_field, target, oneof, field, names, scalar)) for kinds, set_field in choices
                ]


def _recording_alias(field: FieldRules, set_field: Setter) -> Setter:
    """Returns the setter of a field with aliases, which records the name that the client used."""

    def set_and_record(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        context.record_alias(field, path)
        set_field(message, value, path, context)

    return set_and_record


def _shortcut_setter(field: FieldRules, inner: FieldRules, reader: MessageReader) -> Setter:
    """Returns the setter of a shortcut to `inner`, a field of the field's message."""
    name, set_inner = field.descriptor.name, field_setter(inner, reader.read)

    def set_and_record(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        own = (path[0] if path else None, field.name)
        # Errors name the inner field, or the message where it conflicts with another one.
        context.record_name((own, inner.name), path)
        context.record_name(own, path)
        set_inner(getattr(message, name), value, path, context)

    return set_and_record


def _shared_name(choices: list[_Choice]) -> Setter:
    # The setter of a single field has the more precise error for a wrong type.
    return choices[0][1] if len(choices) == 1 else _by_kind(choices)


def _refuse_second(names: tuple[str, ...], relation: str, members: dict[str, Any], path: FieldPath) -> None:
    present = [name for name in names if members.get(name) is not None]
    if len(present) > 1:
        message = f"{relation} '{present[0]}'; send only one of them"
        raise decode_error(message, (path, present[1]), "conflicting_values")


def _read_foreign(member: ForeignMember, value: Any, path: FieldPath, context: DecodeContext) -> None:
    if member.asks_for_nothing(value):
        return
    if member.effect is Effect.REFUSED:
        raise decode_error(f"not supported. {member.reason}", path, "unsupported")
    context.report_ignored(path)


def _identity(message: Message) -> Message:
    return message


def _inside(target: Target, field: FieldRules) -> Target:
    name = field.descriptor.name
    return lambda message: getattr(target(message), name)


def _on_target(target: Target, set_field: Setter) -> Setter:
    if target is _identity:
        return set_field
    return lambda message, value, path, context: set_field(target(message), value, path, context)
