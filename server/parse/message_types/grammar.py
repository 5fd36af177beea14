"""Writes the grammar of a protobuf message type's JSON, in llguidance's dialect of Lark.

It is no JSON Schema, in which llguidance cannot bound a number that has an exponent.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import product

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from glimpse.engine.checkpoint.grammar.json_schema import MAX_PROPERTIES
from glimpse.engine.checkpoint.text.grammar_check import MAX_LARK_DEFINITIONS
from glimpse.server.parse.message_types.descriptors import DescriptorError
from glimpse.server.parse.message_types.well_known import (
    TERMINALS,
    WELL_KNOWN,
    WRAPPERS,
    list_of,
    map_key,
    object_of,
    scalar,
)

MAX_LEVELS = 12
"""Levels of messages that contain themselves; protobuf's parsers read a hundred levels of all messages."""
_MAX_ALTERNATIVES = 64
"""Combinations of the members of a message's oneofs."""
_MAX_RULES = MAX_LARK_DEFINITIONS - len(TERMINALS) - 1
_ANY = "google.protobuf.Any"
_NULL = "google.protobuf.NullValue"


def message_grammar(root: Descriptor) -> str:
    """Returns the grammar of a type's JSON: what matches it is a message.

    Fields without presence and required ones are required. Takes milliseconds.

    Raises:
        DescriptorError: the type has no such grammar, or one that is too large; it names the field.
    """
    types = _reachable(root)
    for descriptor in types.values():
        _check(descriptor)
    return _GrammarBuilder(types).build(root)


def _reachable(root: Descriptor) -> dict[str, Descriptor]:
    """Returns the types that a message consists of, by their full names. Raises DescriptorError: they are too many."""
    types = {root.full_name: root}
    waiting = [root]
    num_fields = 0
    while waiting:
        descriptor = waiting.pop()
        num_fields += len(descriptor.fields)
        if num_fields > MAX_PROPERTIES:
            raise DescriptorError(
                f"{root.full_name}: expected at most {MAX_PROPERTIES} fields, those of fields included"
            )
        for field in descriptor.fields:
            inner = _message_type(field)
            if inner is not None and inner.full_name not in types:
                types[inner.full_name] = inner
                waiting.append(inner)
    return types


def _message_type(field: FieldDescriptor) -> Descriptor | None:
    """Returns the type of the messages that a field holds; of a map, that of its values."""
    return _value_field(field).message_type


def _value_field(field: FieldDescriptor) -> FieldDescriptor:
    """Returns the field itself, or of a map that of its values. Raises DescriptorError: the map has no entries."""
    entry = _entry(field)
    return field if entry is None else entry["value"]


def _entry(field: FieldDescriptor) -> Mapping[str, FieldDescriptor] | None:
    """Returns the fields of a map's entries by their names, key and value; None: the field is no map."""
    if field.message_type is None or not field.message_type.GetOptions().map_entry:
        return None
    entry = field.message_type.fields_by_name
    if set(entry) != {"key", "value"}:
        raise DescriptorError(f"{field.full_name}: a map's entries have the fields key and value")
    return entry


def _check(descriptor: Descriptor) -> None:
    """Raises DescriptorError if the JSON of a type cannot be described."""
    name = descriptor.full_name
    if name == _ANY:
        raise DescriptorError(f"{name} may be of any type, which no grammar can hold")
    if name in WELL_KNOWN:
        return
    if descriptor.GetOptions().message_set_wire_format:
        raise DescriptorError(f"{name}: a message set holds extensions, which no grammar can hold")
    for extension in descriptor.file.pool.FindAllExtensions(descriptor):
        raise DescriptorError(f"{extension.full_name}: an extension of {name}, which no grammar can hold")
    names = set[str]()
    for field in descriptor.fields:
        value = _value_field(field)
        if value.message_type is not None and value.message_type.full_name == _ANY:
            raise DescriptorError(
                f"{field.full_name}: google.protobuf.Any may be of any type, which no grammar can hold"
            )
        if value.enum_type is not None and value.enum_type.full_name == _NULL and field.is_repeated:
            raise DescriptorError(f"{field.full_name}: null cannot be repeated in protobuf's JSON")
        if field.json_name in names:
            raise DescriptorError(f"{field.full_name}: another field of {name} is {field.json_name!r} in JSON too")
        names.add(field.json_name)


class _GrammarBuilder:
    """Builds the rules of the types that one message consists of."""

    def __init__(self, types: Mapping[str, Descriptor]) -> None:
        """Raises DescriptorError if a type has no finite message."""
        inner = {name: dict(_messages_in(descriptor)) for name, descriptor in types.items()}
        required = {
            name: {each.full_name for field, each in fields.items() if field.is_required}
            for name, fields in inner.items()
        }
        for name in sorted(_in_cycles(required)):
            raise DescriptorError(f"{name}: no message of it is finite, since its required fields lead back to it")
        self._types = types
        self._circular = _in_cycles(
            {name: {each.full_name for each in fields.values()} for name, fields in inner.items()}
        )
        self._names: dict[tuple[str, int], str] = {}  # of rules, by type and level
        self._rules: dict[str, str] = {}
        self._waiting: list[tuple[Descriptor, int]] = []
        self._num_members = 0

    def build(self, root: Descriptor) -> str:
        """Returns the grammar. Raises DescriptorError if it is too large."""
        start = self._refer(root, 0)
        while self._waiting:
            descriptor, level = self._waiting.pop()
            self._rules[self._refer(descriptor, level)] = self._message(descriptor, level)
            if len(self._rules) > _MAX_RULES:
                raise DescriptorError(f"{root.full_name}: its grammar has more than {_MAX_RULES} rules")
        return "".join(f"{name}: {rule}\n" for name, rule in {"start": start, **self._rules, **TERMINALS}.items())

    def _refer(self, descriptor: Descriptor, level: int) -> str:
        """Returns the name of a type's rule."""
        key = descriptor.full_name, level if descriptor.full_name in self._circular else 0
        if key not in self._names:
            self._names[key] = f"message_{len(self._names)}"
            self._waiting.append((descriptor, level))
        return self._names[key]

    def _nested(self, outer: Descriptor, level: int, inner: Descriptor, *, required: bool = False) -> str | None:
        """Returns the rule of a message in another one; None if they would be nested too deep."""
        if not {outer.full_name, inner.full_name} <= self._circular:
            return self._refer(inner, 0)
        return self._refer(inner, level + 1) if required or level < MAX_LEVELS else None

    def _message(self, descriptor: Descriptor, level: int) -> str:
        if (known := WELL_KNOWN.get(descriptor.full_name)) is not None:
            return known(lambda name: self._nested(descriptor, level, self._types[name]))
        if descriptor.full_name in WRAPPERS:
            return scalar(descriptor.fields[0])
        values = {field: self._field(field, descriptor, level) for field in descriptor.fields}
        own = self._refer(descriptor, level)
        alternatives = [
            self._object(
                f"{own}_{index}" if index else own,
                {field: value for field, value in values.items() if value is not None and field not in left_out},
            )
            for index, left_out in enumerate(self._left_out(descriptor))
        ]
        if self._num_members > MAX_PROPERTIES:
            raise DescriptorError(
                f"{descriptor.full_name}: with it, the grammar has more than {MAX_PROPERTIES} fields; "
                "members of oneofs count for each other one, and messages that contain themselves for each level"
            )
        return " | ".join(alternatives)

    def _left_out(self, descriptor: Descriptor) -> Iterator[frozenset[FieldDescriptor]]:
        """Yields what may not be set, for each choice of one member of each oneof."""
        several = [oneof for oneof in descriptor.oneofs if len(oneof.fields) > 1]
        oneofs = [oneof.fields for oneof in several]
        num_alternatives = math.prod(map(len, oneofs))
        if num_alternatives > _MAX_ALTERNATIVES:
            raise DescriptorError(
                f"{several[-1].full_name}: expected oneofs with at most {_MAX_ALTERNATIVES} "
                f"combinations of members in a message, got {num_alternatives}"
            )
        members = {field for fields in oneofs for field in fields}
        for chosen in product(*oneofs):
            yield frozenset(members.difference(chosen))

    def _object(self, name: str, values: Mapping[FieldDescriptor, str]) -> str:
        """Returns an object with these members, in their order. `name` begins those of the rules that it needs."""
        self._num_members += len(values)
        members = [
            f"{_text(json.dumps(field.json_name, ensure_ascii=False))} COLON {values[field]}" for field in values
        ]
        needed = [field.is_required or not field.has_presence for field in values]
        if True not in needed:
            return f"OPEN {self._any_of(name, members)} CLOSE"
        first = needed.index(True)
        before = [f"({each} COMMA)?" for each in members[:first]]
        after = [
            f"COMMA {member}" if is_needed else f"(COMMA {member})?"
            for member, is_needed in zip(members[first + 1 :], needed[first + 1 :], strict=True)
        ]
        return " ".join(("OPEN", *before, members[first], *after, "CLOSE"))

    def _any_of(self, name: str, members: Sequence[str]) -> str:
        """Returns any of the members, in their order."""
        if not members:
            return ""
        following = ""
        starts = list[str]()
        for index in reversed(range(len(members))):
            starts.append(f"{members[index]} {following}")
            if index:
                self._rules[f"{name}_from_{index}"] = f"(COMMA {members[index]})? {following}"
                following = f"{name}_from_{index}"
        return f"({' | '.join(reversed(starts))})?"

    def _field(self, field: FieldDescriptor, outer: Descriptor, level: int) -> str | None:
        """Returns the value of a field; None if it is not set, since messages would be nested too deep."""
        value = self._value(_value_field(field), outer, level, required=field.is_required)
        if value is None:
            return None
        if (entry := _entry(field)) is not None:
            return object_of(map_key(entry["key"]), value)
        return list_of(value) if field.is_repeated else value

    def _value(self, field: FieldDescriptor, outer: Descriptor, level: int, *, required: bool) -> str | None:
        if field.message_type is not None:
            return self._nested(outer, level, field.message_type, required=required)
        if field.enum_type is None:
            return scalar(field)
        if field.enum_type.full_name == _NULL:
            return _text("null")
        return f"({' | '.join(_text(json.dumps(value.name)) for value in field.enum_type.values)})"


def _text(text: str) -> str:
    return json.dumps(text)


def _messages_in(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, Descriptor]]:
    """Yields the fields that hold messages, with their types."""
    for field in descriptor.fields:
        inner = _message_type(field)
        if inner is not None:
            yield field, inner


def _in_cycles(graph: Mapping[str, set[str]]) -> set[str]:
    """Returns the nodes that are in cycles, or on a way from one cycle to another."""
    reverse: dict[str, set[str]] = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            reverse[other].add(name)
    return _behind_cycles(graph) & _behind_cycles(reverse)


def _behind_cycles(graph: Mapping[str, set[str]]) -> set[str]:
    """Returns the nodes that are in cycles or lead to one."""
    sorter = TopologicalSorter(graph)
    with suppress(CycleError):
        sorter.prepare()
    left = set(graph)
    while ready := sorter.get_ready():
        sorter.done(*ready)
        left.difference_update(ready)
    return left
