"""The JSON rules of messages, read from their descriptors and the `glimpse.json.v1` options. Knows no message by name.

These are facts about JSON forms; reading and writing documents, and describing them, is done elsewhere.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

from glimpse.dialect.options import (
    enum_value_option,
    field_option,
    is_map,
    is_required,
    message_option,
    message_type,
    oneof_option,
)
from glimpse.json.v1 import annotations_pb2


class JsonKind(StrEnum):
    """The JSON types, worded as they stand in error messages."""

    STRING = "a string"
    NUMBER = "a number"
    BOOLEAN = "a boolean"
    ARRAY = "an array"
    OBJECT = "an object"


class Effect(StrEnum):
    """What becomes of a field that is given."""

    HONOURED = "honoured"
    ECHOED = "echoed"
    """The answer repeats it; it changes nothing else."""
    NONE = "no effect"
    """For the caller's own records."""
    REFUSED = "refused"
    """By its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A member that is refused by name."""

    name: str
    why: str
    """A sentence."""
    accepted: tuple[Any, ...]
    """Values that ask for nothing and are therefore accepted, beside null."""

    def accepts(self, value: Any) -> bool:
        """The value asks for nothing."""
        # Python's True is 1, JSON's is not.
        return any(isinstance(value, bool) == isinstance(other, bool) and value == other for other in self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRules:
    """How one field stands in JSON."""

    descriptor: FieldDescriptor
    """The field itself."""
    name: str
    """The JSON name; also that of the tag's value where the field belongs to a tagged oneof."""
    aliases: tuple[str, ...]
    """Further names accepted on reading."""
    kinds: frozenset[JsonKind]
    """The JSON types of the field's value."""
    element_kinds: frozenset[JsonKind]
    """The JSON types of its elements, where it is a list; else the same as `kinds`."""
    nullable: bool
    """Written as null when the field is not set."""
    raw: bool
    """The string holds JSON text."""
    accept_scalar: bool
    """A single bare element is read as a list of one."""
    flatten: bool
    """The message's members stand in the parent's object."""
    omit_empty: bool
    """Left out when empty."""
    required: bool
    """Must be there, by `google.api.field_behavior`."""
    min: float | None
    """The smallest value, or the fewest elements."""
    max: float | None
    """The largest value, or the most elements."""
    effect: Effect
    """What becomes of it."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which the field is read."""
        return (self.name, *self.aliases)

    @property
    def is_map(self) -> bool:
        """The field is a map: a JSON object."""
        return is_map(self.descriptor)

    @property
    def is_list(self) -> bool:
        """The field is a list: a JSON array."""
        return self.descriptor.is_repeated and not self.is_map


@dataclass(frozen=True, slots=True, kw_only=True)
class OneofRules:
    """How a oneof stands in JSON."""

    descriptor: OneofDescriptor
    """The oneof itself."""
    tag: str | None
    """The member that names the field that is set; None: the field alone stands in the object."""
    tag_beside: str | None
    """The tag is written only where this field of the message is set, and need not be there on reading."""
    fields: tuple[FieldRules, ...]
    """Its fields in declaration order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRules:
    """How a message stands in JSON."""

    descriptor: Descriptor
    """The message itself."""
    constants: tuple[tuple[str, str], ...]
    """Members with fixed values: name, value."""
    scalar_field: FieldRules | None
    """The field that a bare string sets."""
    union: bool
    """The message's value is that of the one field whose kinds fit."""
    members: tuple[FieldRules | OneofRules, ...]
    """The fields in declaration order; a oneof stands where its first field is."""
    refusals: tuple[Refusal, ...]
    """Members that are refused by name."""
    closed: bool
    """Members that no rule knows are refused, too."""

    @property
    def fields(self) -> tuple[FieldRules, ...]:
        """All fields, those of oneofs included."""
        return tuple(field for member in self.members for field in _fields_of(member))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumRules:
    """How an enum's values stand in JSON; the unspecified value does not."""

    names: dict[int, str]
    """JSON names by number."""
    numbers: dict[str, int]
    """Numbers by JSON name, aliases included."""


@cache
def message_rules(descriptor: Descriptor) -> MessageRules:
    """The rules of a message type."""
    options = message_option(descriptor)
    scalar_field = options.scalar_field
    return MessageRules(
        descriptor=descriptor,
        constants=tuple((constant.name, constant.value) for constant in options.constants),
        scalar_field=field_rules(descriptor.fields_by_name[scalar_field]) if scalar_field else None,
        union=options.union,
        members=tuple(_members(descriptor)),
        refusals=tuple(map(_refusal, options.refusals)),
        closed=options.closed,
    )


def _refusal(options: annotations_pb2.Refusal) -> Refusal:
    return Refusal(name=options.name, why=options.why, accepted=tuple(map(json.loads, options.accepted)))


_EFFECTS = {
    annotations_pb2.EFFECT_UNSPECIFIED: Effect.HONOURED,
    annotations_pb2.EFFECT_ECHOED: Effect.ECHOED,
    annotations_pb2.EFFECT_NONE: Effect.NONE,
    annotations_pb2.EFFECT_REFUSED: Effect.REFUSED,
}


@cache
def field_rules(field: FieldDescriptor) -> FieldRules:
    """The rules of a field, also of one that does not exist in JSON."""
    options = field_option(field)
    bounds = options.bounds
    return FieldRules(
        descriptor=field,
        name=options.name or field.name,
        aliases=tuple(options.aliases),
        kinds=_kinds(field, options),
        element_kinds=_element_kinds(field) if field.is_repeated and not is_map(field) else _kinds(field, options),
        nullable=options.nullable,
        raw=options.raw,
        accept_scalar=options.accept_scalar,
        flatten=options.flatten,
        omit_empty=options.omit_empty,
        required=is_required(field),
        min=bounds.min if bounds.HasField("min") else None,
        max=bounds.max if bounds.HasField("max") else None,
        effect=_EFFECTS[options.effect],
    )


@cache
def enum_rules(descriptor: EnumDescriptor) -> EnumRules:
    """The rules of an enum type."""
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", descriptor.name).upper() + "_"
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for value in descriptor.values:
        if value.number == 0:
            continue
        names[value.number] = value.name.removeprefix(prefix).lower()
        aliases = enum_value_option(value).aliases
        numbers.update(dict.fromkeys((names[value.number], *aliases), value.number))
    return EnumRules(names=names, numbers=numbers)


def _members(descriptor: Descriptor) -> list[FieldRules | OneofRules]:
    members: list[FieldRules | OneofRules] = []
    seen: set[str] = set()
    for field in descriptor.fields:
        oneof = _real_oneof(field)
        if field_option(field).grpc_only or (oneof is not None and oneof.name in seen):
            continue
        if oneof is None:
            members.append(field_rules(field))
        else:
            seen.add(oneof.name)
            members.append(_oneof_rules(oneof))
    return members


def _fields_of(member: FieldRules | OneofRules) -> tuple[FieldRules, ...]:
    return member.fields if isinstance(member, OneofRules) else (member,)


def _real_oneof(field: FieldDescriptor) -> OneofDescriptor | None:
    oneof = field.containing_oneof
    # `optional` makes a oneof of its own, whose name begins with an underscore and which is no choice.
    if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{field.name}"):
        return None
    return oneof


def _oneof_rules(oneof: OneofDescriptor) -> OneofRules:
    options = oneof_option(oneof)
    fields = tuple(field_rules(field) for field in oneof.fields if not field_option(field).grpc_only)
    return OneofRules(descriptor=oneof, tag=options.tag or None, tag_beside=options.tag_beside or None, fields=fields)


_KIND_OF_TYPE = {
    annotations_pb2.JSON_TYPE_STRING: JsonKind.STRING,
    annotations_pb2.JSON_TYPE_ARRAY: JsonKind.ARRAY,
    annotations_pb2.JSON_TYPE_OBJECT: JsonKind.OBJECT,
    annotations_pb2.JSON_TYPE_NUMBER: JsonKind.NUMBER,
}


def _kinds(field: FieldDescriptor, options: annotations_pb2.FieldRule) -> frozenset[JsonKind]:
    if options.raw:
        kinds = frozenset(JsonKind)
    elif is_map(field):
        kinds = frozenset((JsonKind.OBJECT,))
    elif not field.is_repeated:
        kinds = _element_kinds(field)
    elif options.accept_scalar:
        kinds = _element_kinds(field) | {JsonKind.ARRAY}
    else:
        kinds = frozenset((JsonKind.ARRAY,))
    if options.type == annotations_pb2.JSON_TYPE_UNSPECIFIED:
        return kinds
    return kinds & {_KIND_OF_TYPE[options.type]}


def _element_kinds(field: FieldDescriptor) -> frozenset[JsonKind]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return _message_kinds(message_type(field))
        case FieldDescriptor.CPPTYPE_STRING | FieldDescriptor.CPPTYPE_ENUM:
            return frozenset((JsonKind.STRING,))
        case FieldDescriptor.CPPTYPE_BOOL:
            return frozenset((JsonKind.BOOLEAN,))
        case _:
            return frozenset((JsonKind.NUMBER,))


def _message_kinds(descriptor: Descriptor) -> frozenset[JsonKind]:
    options = message_option(descriptor)
    if options.union:
        fields = [field for field in descriptor.fields if not field_option(field).grpc_only]
        return frozenset[JsonKind]().union(*(_kinds(field, field_option(field)) for field in fields))
    if options.scalar_field:
        return frozenset((JsonKind.OBJECT, JsonKind.STRING))
    return frozenset((JsonKind.OBJECT,))
