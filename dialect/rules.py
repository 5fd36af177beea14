"""The JSON form of messages, from their descriptors and the rules of a dialect.

Generic over message types and dialects. The codec, the OpenAPI document and the documentation all follow it.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

from glimpse.dialect.options import bounds_option, enum_names, enum_type, is_map, is_required, map_entry, message_type
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
    """Only the caller's own records use the member."""
    IGNORED = "accepted, without effect"
    """The member changes nothing that a client could notice in the answer. The response names it."""
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
    name: str
    """JSON name, which is also its tag if it belongs to a tagged oneof."""
    aliases: tuple[str, ...]
    """Further names accepted when reading."""
    kinds: frozenset[JsonKind]
    """The JSON types of the field's value."""
    element_kinds: frozenset[JsonKind]
    """The JSON types of its elements if it is a list, otherwise the same as `kinds`."""
    rule: dialect_pb2.FieldRule
    required: bool
    """`google.api.field_behavior` says REQUIRED."""
    min: float | None
    """The smallest value, or the fewest elements."""
    max: float | None
    """The largest value, or the most elements."""
    members_beside: tuple["FieldRules", ...]
    """Fields of this field's message whose members may also stand beside it, in the enclosing object."""
    blamed: tuple[str, str] | None
    """The member of this field's message that a bare string sets, and the one that errors about its absence name."""
    effect: Effect
    inline: bool
    """The members of its message stand in the enclosing object."""
    shortcuts: tuple[tuple[str, "FieldRules"], ...]
    """Further members of the enclosing object, and the field of this field's message that each of them sets."""
    enum: "EnumRules | None"
    """The JSON names of its values, if it is an enum."""
    entry: "tuple[FieldRules, FieldRules] | None"
    """Key and value, if it is a map."""

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

    @property
    def has_no_fields(self) -> bool:
        """Whether the field is a message without fields of its own."""
        message = self.descriptor.message_type
        return message is not None and not message.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignForm:
    """Another tag of a oneof, and the members that may hold the value next to it."""

    tag: str
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
    tag: str | None
    """The member that names the field that is set. None if the field's own member says so."""
    tag_only_with: str | None
    """The tag is written only if this field of the message is set, and is optional when reading."""
    fields: tuple[FieldRules, ...]
    """Fields in declaration order."""
    forms: tuple[ForeignForm, ...]
    """How other APIs write its fields."""
    internal: bool
    """The members of the chosen message stand beside the tag. The enclosing message has no other fields."""
    default: FieldRules | None
    """The field that is meant if an internal oneof has no tag. None: the tag is required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRules:
    """The JSON form of a message."""

    descriptor: Descriptor
    constants: tuple[tuple[str, str], ...]
    """Members with fixed values: name, value."""
    scalar_field: FieldRules | None
    """The field that a bare string sets."""
    innermost_scalar_field: FieldRules | None
    """`scalar_field`, or the one of its message if it is flattened: the field that the string itself becomes."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumRules:
    """The JSON names of an enum's values. The unspecified value has none."""

    names: dict[int, str]
    """JSON names by number."""
    numbers: dict[str, int]
    """Numbers by JSON name, including aliases."""


class Dialect:
    """A JSON form of messages. It is a value: several dialects may describe the same messages."""

    def __init__(self, text: str = "") -> None:
        """`text`: the rules, a `glimpse.json.v1.Dialect` in text format. Raises text_format.ParseError."""
        rules = text_format.Parse(text, dialect_pb2.Dialect())
        # What has no rule has that of the defaults.
        self._messages = defaultdict(dialect_pb2.MessageRule, {each.name: each for each in rules.messages})
        self._oneofs = defaultdict(dialect_pb2.OneofRule)
        self._fields = defaultdict(dialect_pb2.FieldRule)
        self._values = defaultdict(dialect_pb2.EnumValueRule)
        for message in rules.messages:
            self._oneofs.update((f"{message.name}.{oneof.name}", oneof) for oneof in message.oneofs)
            self._fields.update((f"{message.name}.{field.name}", field) for field in message.fields)
        for enum in rules.enums:
            self._values.update((f"{enum.name}.{value.name}", value) for value in enum.values)
        self.message = cache(self._message)
        """Returns the JSON form of a message type."""
        self.field = cache(self._field)
        """Returns the JSON form of a field."""
        self.enum = cache(self._enum)
        """Returns the JSON names of an enum type."""

    def _message(self, descriptor: Descriptor) -> MessageRules:
        rule = self._messages[descriptor.full_name]
        list_field = rule.list_field
        scalar = self.field(descriptor.fields_by_name[rule.scalar_field]) if rule.scalar_field else None
        innermost = scalar
        if scalar is not None and scalar.inline:
            innermost = self.message(message_type(scalar.descriptor)).innermost_scalar_field
        return MessageRules(
            descriptor=descriptor,
            constants=tuple((constant.name, constant.value) for constant in rule.constants),
            scalar_field=scalar,
            innermost_scalar_field=innermost,
            list_field=self.field(descriptor.fields_by_name[list_field]) if list_field else None,
            union=rule.union,
            members=self._members(descriptor),
            foreign=(
                *(member for each in rule.refusals for member in _foreign_members(each, Effect.REFUSED)),
                *(member for each in rule.hints for member in _foreign_members(each, Effect.IGNORED)),
            ),
            closed=rule.closed,
        )

    def _field(self, field: FieldDescriptor) -> FieldRules:
        rule, bounds = self._fields[field.full_name], bounds_option(field)
        entry = map_entry(field) if is_map(field) else None
        oneof = field.containing_oneof
        return FieldRules(
            descriptor=field,
            name=rule.json_name or field.name,
            aliases=tuple(rule.aliases),
            kinds=self._kinds(field),
            element_kinds=self._element_kinds(field) if field.is_repeated and entry is None else self._kinds(field),
            rule=rule,
            required=is_required(field),
            min=bounds.min if bounds.HasField("min") else None,
            max=bounds.max if bounds.HasField("max") else None,
            members_beside=self._scalars(message_type(field)) if rule.members_beside else (),
            blamed=(self._bare_string_name(message_type(field)), rule.blamed_member) if rule.blamed_member else None,
            effect=_EFFECTS[rule.effect],
            inline=rule.flatten or (oneof is not None and self._oneofs[oneof.full_name].internal),
            shortcuts=tuple(
                (shortcut.name, self.field(message_type(field).fields_by_name[shortcut.field]))
                for shortcut in rule.shortcuts
            ),
            enum=None if field.enum_type is None else self.enum(enum_type(field)),
            entry=None if entry is None else (self.field(entry[0]), self.field(entry[1])),
        )

    def _enum(self, descriptor: EnumDescriptor) -> EnumRules:
        names = enum_names(descriptor)
        numbers: dict[str, int] = {}
        for number, name in names.items():
            rule = self._values[f"{descriptor.full_name}.{descriptor.values_by_number[number].name}"]
            numbers.update(dict.fromkeys((name, *rule.aliases), number))
        return EnumRules(names=names, numbers=numbers)

    def _bare_string_name(self, message: Descriptor) -> str:
        innermost = self.message(message).innermost_scalar_field
        return innermost.name if innermost else ""

    def _scalars(self, message: Descriptor) -> tuple[FieldRules, ...]:
        return tuple(self.field(field) for field in message.fields if field.message_type is None)

    def _members(self, descriptor: Descriptor) -> tuple[FieldRules | OneofRules, ...]:
        members = dict.fromkeys(_real_oneof(field) or field for field in descriptor.fields)
        return tuple(self.field(each) if isinstance(each, FieldDescriptor) else self._oneof(each) for each in members)

    def _oneof(self, oneof: OneofDescriptor) -> OneofRules:
        rule = self._oneofs[oneof.full_name]
        fields = {field.name: self.field(field) for field in oneof.fields}
        return OneofRules(
            descriptor=oneof,
            tag=rule.tag or None,
            tag_only_with=rule.tag_only_with or None,
            fields=tuple(fields.values()),
            forms=tuple(
                ForeignForm(tag=form.tag, members=tuple(form.members), field=fields.get(form.field), reason=form.reason)
                for form in rule.forms
            ),
            internal=rule.internal,
            default=fields[rule.default_field] if rule.default_field else None,
        )

    def _kinds(self, field: FieldDescriptor) -> frozenset[JsonKind]:
        rule = self._fields[field.full_name]
        if rule.raw:
            kinds = frozenset(JsonKind)
        elif is_map(field):
            kinds = frozenset((JsonKind.OBJECT,))
        elif rule.float32s:
            kinds = frozenset((JsonKind.ARRAY,))
        elif not field.is_repeated:
            kinds = self._element_kinds(field)
        elif rule.accept_scalar:
            kinds = self._element_kinds(field) | {JsonKind.ARRAY}
        else:
            kinds = frozenset((JsonKind.ARRAY,))
        if rule.type == dialect_pb2.JSON_TYPE_UNSPECIFIED:
            return kinds
        return kinds & {_KIND_OF_TYPE[rule.type]}

    def _element_kinds(self, field: FieldDescriptor) -> frozenset[JsonKind]:
        if field.message_type is not None:
            return self._message_kinds(field.message_type)
        return frozenset((_KIND_OF_CPP_TYPE.get(field.cpp_type, JsonKind.NUMBER),))

    def _message_kinds(self, descriptor: Descriptor) -> frozenset[JsonKind]:
        rule = self._messages[descriptor.full_name]
        if rule.union:
            return frozenset[JsonKind]().union(*(self._kinds(field) for field in descriptor.fields))
        kinds = {JsonKind.OBJECT: True, JsonKind.STRING: rule.scalar_field, JsonKind.ARRAY: rule.list_field}
        return frozenset(kind for kind, accepted in kinds.items() if accepted)


def _foreign_members(rule: dialect_pb2.Refusal, effect: Effect) -> Iterator[ForeignMember]:
    accepted = tuple(map(json.loads, rule.accepted))
    for name in (rule.name, *rule.more_names):
        yield ForeignMember(name=name, effect=effect, reason=rule.reason, accepted=accepted)


_EFFECTS = {
    dialect_pb2.EFFECT_UNSPECIFIED: Effect.HONOURED,
    dialect_pb2.EFFECT_ECHOED: Effect.ECHOED,
    dialect_pb2.EFFECT_NONE: Effect.NONE,
    dialect_pb2.EFFECT_ROUTING: Effect.ROUTING,
}


def _fields_of(member: FieldRules | OneofRules) -> tuple[FieldRules, ...]:
    return member.fields if isinstance(member, OneofRules) else (member,)


def _real_oneof(field: FieldDescriptor) -> OneofDescriptor | None:
    oneof = field.containing_oneof
    # `optional` creates a synthetic oneof with the field's name after an underscore.
    if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{field.name}"):
        return None
    return oneof


_KIND_OF_CPP_TYPE = {
    FieldDescriptor.CPPTYPE_STRING: JsonKind.STRING,
    FieldDescriptor.CPPTYPE_ENUM: JsonKind.STRING,
    FieldDescriptor.CPPTYPE_BOOL: JsonKind.BOOLEAN,
}
_KIND_OF_TYPE = {
    dialect_pb2.JSON_TYPE_STRING: JsonKind.STRING,
    dialect_pb2.JSON_TYPE_ARRAY: JsonKind.ARRAY,
    dialect_pb2.JSON_TYPE_OBJECT: JsonKind.OBJECT,
    dialect_pb2.JSON_TYPE_NUMBER: JsonKind.NUMBER,
}
