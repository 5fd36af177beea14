"""The JSON form of messages, from their descriptors and the dialect's rules.

Generic over message types. The codec, the message checks, the OpenAPI document and the documentation all follow it.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

from glimpse.dialect.options import bounds_option, is_map, is_required, message_type
from glimpse.dialect.rule_file import enum_value_rule, field_rule, message_rule, oneof_rule
from glimpse.json.v1 import dialect_pb2


class JsonKind(StrEnum):
    """The JSON types, as error messages name them."""

    STRING = "a string"
    NUMBER = "a number"
    BOOLEAN = "a boolean"
    ARRAY = "an array"
    OBJECT = "an object"


class Effect(StrEnum):
    """What a field of a request does."""

    HONOURED = "honoured"
    ECHOED = "echoed"
    """The response repeats it. It changes nothing else."""
    ROUTING = "routing"
    """The gateway chooses a replica by it. It changes nothing else."""
    NONE = "no effect"
    """It is for the caller's own records."""
    IGNORED = "accepted, without effect"
    """It changes nothing that a client could notice in the answer. The response names it."""
    REFUSED = "refused"
    """The server refuses it by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMember:
    """A member of other servers' APIs, which this one does not have."""

    name: str
    effect: Effect
    """REFUSED or IGNORED."""
    reason: str
    """Why, and what to send instead: a sentence."""
    accepted: tuple[Any, ...]
    """Values that ask for nothing. Null always does."""

    def asks_for_nothing(self, value: Any) -> bool:
        """Returns whether the value is one of those that ask for nothing."""
        # True equals 1 in Python, not in JSON.
        return any(isinstance(value, bool) == isinstance(other, bool) and value == other for other in self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRules:
    """The JSON form of one field."""

    descriptor: FieldDescriptor
    """The field itself."""
    name: str
    """Its JSON name, which is also its tag if it belongs to a tagged oneof."""
    aliases: tuple[str, ...]
    """Further names accepted when reading."""
    kinds: frozenset[JsonKind]
    """The JSON types of the field's value."""
    element_kinds: frozenset[JsonKind]
    """The JSON types of its elements if it is a list, otherwise the same as `kinds`."""
    nullable: bool
    """Written as null if it is not set."""
    null_elements: bool
    """Elements of the list that are NaN, or messages in which nothing is set, are written as null."""
    float32s: bool
    """The bytes are packed little-endian float32 values, which are an array of numbers in JSON."""
    raw: bool
    """The string holds JSON text, which is copied verbatim."""
    accept_scalar: bool
    """A single bare element is read as a list of one."""
    flatten: bool
    """The members of the message stand in the enclosing object."""
    omit_empty: bool
    """Left out if it is empty."""
    required: bool
    """`google.api.field_behavior` says REQUIRED."""
    min: float | None
    """The smallest value, or the fewest elements."""
    max: float | None
    """The largest value, or the most elements."""
    members_beside: tuple["FieldRules", ...]
    """Fields of this field's message whose members may also stand beside it, in the enclosing object."""
    effect: Effect
    """What it does."""
    shortcuts: tuple[tuple[str, "FieldRules"], ...]
    """Further members of the enclosing object, and the field of this field's message that each of them sets."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names accepted when reading."""
        return (self.name, *self.aliases)

    @property
    def is_map(self) -> bool:
        """Whether the field is a map: a JSON object."""
        return is_map(self.descriptor)

    @property
    def is_list(self) -> bool:
        """Whether the field is a list: a JSON array."""
        return self.descriptor.is_repeated and not self.is_map


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignForm:
    """Another tag of a oneof, and the members that may hold the value next to it."""

    tag: str
    """The tag."""
    members: tuple[str, ...]
    """The members, of which an object has one."""
    field: FieldRules | None
    """The field that they set. None: every value is refused, null too."""
    reason: str
    """Why a value other than null is refused: a sentence. Empty if it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneofRules:
    """The JSON form of a oneof."""

    descriptor: OneofDescriptor
    """The oneof itself."""
    tag: str | None
    """The member that names the field that is set. None if the field's own member says so."""
    tag_only_with: str | None
    """The tag is written only if this field of the message is set, and is optional when reading."""
    fields: tuple[FieldRules, ...]
    """Its fields in declaration order."""
    forms: tuple[ForeignForm, ...]
    """How other APIs write its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRules:
    """The JSON form of a message."""

    descriptor: Descriptor
    """The message itself."""
    constants: tuple[tuple[str, str], ...]
    """Members with fixed values: name, value."""
    scalar_field: FieldRules | None
    """The field that a bare string sets."""
    list_field: FieldRules | None
    """The field that a bare array sets."""
    union: bool
    """The message's value is that of the one field whose JSON type matches."""
    members: tuple[FieldRules | OneofRules, ...]
    """The fields in declaration order. A oneof takes the position of its first field."""
    foreign: tuple[ForeignMember, ...]
    """Members of other APIs."""
    closed: bool
    """Every unknown member is refused."""

    @property
    def fields(self) -> tuple[FieldRules, ...]:
        """All fields, including those of oneofs."""
        return tuple(field for member in self.members for field in _fields_of(member))

    @property
    def innermost_scalar_field(self) -> FieldRules | None:
        """`scalar_field`, or the one of its message if it is flattened: the field that the string itself becomes."""
        field = self.scalar_field
        while field is not None and field.flatten:
            field = message_rules(message_type(field.descriptor)).scalar_field
        return field


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumRules:
    """The JSON names of an enum's values. The unspecified value has none."""

    names: dict[int, str]
    """JSON names by number."""
    numbers: dict[str, int]
    """Numbers by JSON name, including aliases."""


@cache
def message_rules(descriptor: Descriptor) -> MessageRules:
    """Returns the JSON form of a message type."""
    rule = message_rule(descriptor)
    scalar_field, list_field = rule.scalar_field, rule.list_field
    return MessageRules(
        descriptor=descriptor,
        constants=tuple((constant.name, constant.value) for constant in rule.constants),
        scalar_field=field_rules(descriptor.fields_by_name[scalar_field]) if scalar_field else None,
        list_field=field_rules(descriptor.fields_by_name[list_field]) if list_field else None,
        union=rule.union,
        members=_members(descriptor),
        foreign=(
            *(_foreign_member(each, Effect.REFUSED) for each in rule.refusals),
            *(_foreign_member(each, Effect.IGNORED) for each in rule.hints),
        ),
        closed=rule.closed,
    )


def _foreign_member(rule: dialect_pb2.Refusal, effect: Effect) -> ForeignMember:
    accepted = tuple(map(json.loads, rule.accepted))
    return ForeignMember(name=rule.name, effect=effect, reason=rule.reason, accepted=accepted)


_EFFECTS = {
    dialect_pb2.EFFECT_UNSPECIFIED: Effect.HONOURED,
    dialect_pb2.EFFECT_ECHOED: Effect.ECHOED,
    dialect_pb2.EFFECT_NONE: Effect.NONE,
    dialect_pb2.EFFECT_ROUTING: Effect.ROUTING,
}


@cache
def field_rules(field: FieldDescriptor) -> FieldRules:
    """Returns the JSON form of a field."""
    rule, bounds = field_rule(field), bounds_option(field)
    return FieldRules(
        descriptor=field,
        name=rule.json_name or field.name,
        aliases=tuple(rule.aliases),
        kinds=_kinds(field, rule),
        element_kinds=_element_kinds(field) if field.is_repeated and not is_map(field) else _kinds(field, rule),
        nullable=rule.nullable,
        null_elements=rule.null_elements,
        float32s=rule.float32s,
        raw=rule.raw,
        accept_scalar=rule.accept_scalar,
        flatten=rule.flatten,
        omit_empty=rule.omit_empty,
        required=is_required(field),
        min=bounds.min if bounds.HasField("min") else None,
        max=bounds.max if bounds.HasField("max") else None,
        members_beside=_scalars(message_type(field)) if rule.members_beside else (),
        effect=_EFFECTS[rule.effect],
        shortcuts=tuple(
            (shortcut.name, field_rules(message_type(field).fields_by_name[shortcut.field]))
            for shortcut in rule.shortcuts
        ),
    )


def _scalars(message: Descriptor) -> tuple[FieldRules, ...]:
    return tuple(field_rules(field) for field in message.fields if field.message_type is None)


@cache
def enum_rules(descriptor: EnumDescriptor) -> EnumRules:
    """Returns the JSON names of an enum type."""
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", descriptor.name).upper() + "_"
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for value in descriptor.values:
        if value.number == 0:
            continue
        names[value.number] = value.name.removeprefix(prefix).lower()
        aliases = enum_value_rule(value).aliases
        numbers.update(dict.fromkeys((names[value.number], *aliases), value.number))
    return EnumRules(names=names, numbers=numbers)


def _members(descriptor: Descriptor) -> tuple[FieldRules | OneofRules, ...]:
    members = dict.fromkeys(_real_oneof(field) or field for field in descriptor.fields)
    return tuple(field_rules(each) if isinstance(each, FieldDescriptor) else _oneof_rules(each) for each in members)


def _fields_of(member: FieldRules | OneofRules) -> tuple[FieldRules, ...]:
    return member.fields if isinstance(member, OneofRules) else (member,)


def _real_oneof(field: FieldDescriptor) -> OneofDescriptor | None:
    oneof = field.containing_oneof
    # `optional` creates a synthetic oneof with the field's name after an underscore.
    if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{field.name}"):
        return None
    return oneof


def _oneof_rules(oneof: OneofDescriptor) -> OneofRules:
    rule = oneof_rule(oneof)
    fields = {field.name: field_rules(field) for field in oneof.fields}
    return OneofRules(
        descriptor=oneof,
        tag=rule.tag or None,
        tag_only_with=rule.tag_only_with or None,
        fields=tuple(fields.values()),
        forms=tuple(
            ForeignForm(tag=form.tag, members=tuple(form.members), field=fields.get(form.field), reason=form.reason)
            for form in rule.forms
        ),
    )


_KIND_OF_TYPE = {
    dialect_pb2.JSON_TYPE_STRING: JsonKind.STRING,
    dialect_pb2.JSON_TYPE_ARRAY: JsonKind.ARRAY,
    dialect_pb2.JSON_TYPE_OBJECT: JsonKind.OBJECT,
    dialect_pb2.JSON_TYPE_NUMBER: JsonKind.NUMBER,
}


def _kinds(field: FieldDescriptor, rule: dialect_pb2.FieldRule) -> frozenset[JsonKind]:
    if rule.raw:
        kinds = frozenset(JsonKind)
    elif is_map(field):
        kinds = frozenset((JsonKind.OBJECT,))
    elif rule.float32s:
        kinds = frozenset((JsonKind.ARRAY,))
    elif not field.is_repeated:
        kinds = _element_kinds(field)
    elif rule.accept_scalar:
        kinds = _element_kinds(field) | {JsonKind.ARRAY}
    else:
        kinds = frozenset((JsonKind.ARRAY,))
    if rule.type == dialect_pb2.JSON_TYPE_UNSPECIFIED:
        return kinds
    return kinds & {_KIND_OF_TYPE[rule.type]}


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
    rule = message_rule(descriptor)
    if rule.union:
        return frozenset[JsonKind]().union(*(_kinds(field, field_rule(field)) for field in descriptor.fields))
    kinds = {JsonKind.OBJECT: True, JsonKind.STRING: rule.scalar_field, JsonKind.ARRAY: rule.list_field}
    return frozenset(kind for kind, accepted in kinds.items() if accepted)
