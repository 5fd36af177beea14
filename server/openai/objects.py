"""JSON values → messages, by the rules of the message's descriptor.

Each message type is compiled once into a table from JSON name to the function that stores such a member.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from glimpse.dialect.options import message_type
from glimpse.dialect.rules import FieldRules, JsonKind, MessageRules, OneofRules, Refusal, message_rules
from glimpse.server.field_path import Place, path_text
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.field_values import Reading, Store, field_store
from glimpse.server.openai.oneofs import TagReader, Target, conflict, exclusive
from glimpse.server.openai.scalars import kind_of, wrong_type

_Choice: TypeAlias = tuple[frozenset[JsonKind], Store]
"""One of the fields that share a JSON name: the JSON types of its values, and how it is stored."""


def read_message(descriptor: Descriptor, message: Message, value: Any, place: Place, reading: Reading) -> None:
    """Reads a JSON value into a message of this type. Raises DecodeError."""
    _value_store(descriptor)(message, value, place, reading)


@cache
def _value_store(descriptor: Descriptor) -> Store:
    rules = message_rules(descriptor)
    if rules.union:
        return _by_kind([(field.kinds, field_store(field, read_message)) for field in rules.fields])
    choices: list[_Choice] = [(frozenset((JsonKind.OBJECT,)), _ObjectReader(rules).read)]
    if rules.scalar_field is not None:
        choices.append((frozenset((JsonKind.STRING,)), field_store(rules.scalar_field, read_message)))
    return _by_kind(choices)


def _by_kind(choices: list[_Choice]) -> Store:
    """Stores by the choice that takes values of the JSON type at hand."""
    stores: dict[JsonKind | None, Store] = {}
    for kinds, store in choices:
        for kind in kinds:
            stores.setdefault(kind, store)
    expected = frozenset(kind for kinds, _ in choices for kind in kinds)

    def store_by_kind(message: Message, value: Any, place: Place, reading: Reading) -> None:
        store = stores.get(kind_of(value))
        if store is None:
            raise wrong_type(expected, value, place)
        store(message, value, place, reading)

    return store_by_kind


class _ObjectReader:
    """Reads the members of a JSON object into a message."""

    def __init__(self, rules: MessageRules) -> None:
        table = _Table()
        table.add_message(rules, _itself)
        self._stores = {name: _shared_name(choices) for name, choices in table.choices.items()}
        self._tags = tuple(table.tags)
        self._synonyms = tuple(table.synonyms)
        self._silent = frozenset(table.silent)
        self._refusals = dict(table.refusals)
        self._closed = rules.closed

    def read(self, message: Message, members: dict[str, Any], place: Place, reading: Reading) -> None:
        for names in self._synonyms:
            _refuse_synonyms(names, members, place)
        for tag in self._tags:
            tag.read(message, members, place, reading)
        for name, value in members.items():
            if value is None:
                continue
            store = self._stores.get(name)
            if store is not None:
                store(message, value, (place, name), reading)
            elif name in self._refusals:
                _refuse(self._refusals[name], value, (place, name))
            elif name not in self._silent:
                self._report((place, name), reading)

    def _report(self, place: Place, reading: Reading) -> None:
        """Tells of a member that no rule knows."""
        if self._closed:
            raise _unsupported(place, "There is no such member.")
        reading.unknown.append(path_text(place))


class _Table:
    """The members of one JSON object, those of flattened messages included."""

    def __init__(self) -> None:
        self.choices: dict[str, list[_Choice]] = {}
        self.tags: list[TagReader] = []
        self.synonyms: list[tuple[str, ...]] = []
        self.silent: set[str] = set()
        self.refusals: dict[str, Refusal] = {}

    def add_message(self, rules: MessageRules, target: Target) -> None:
        self.silent.update(name for name, _ in rules.constants)
        self.refusals.update((refusal.name, refusal) for refusal in rules.refusals)
        for member in rules.members:
            match member:
                case FieldRules():
                    self.add_field(member, target)
                case OneofRules():
                    self._add_oneof(member, target)

    def add_field(self, field: FieldRules, target: Target) -> None:
        if field.flatten:
            self.add_message(message_rules(message_type(field.descriptor)), _within(target, field))
            return
        if field.aliases:
            self.synonyms.append(field.names)
        store = _at(target, _noting(field) if field.aliases else field_store(field, read_message))
        for name in field.names:
            self._add_choice(name, (field.kinds, store))

    def _add_oneof(self, oneof: OneofRules, target: Target) -> None:
        if oneof.tag is not None:
            tag = TagReader(oneof, oneof.tag, target, read_message, optional=target is not _itself)
            self.tags.append(tag)
            self.silent.update(tag.names)
        else:
            self._add_untagged_oneof(oneof, target)

    def _add_untagged_oneof(self, oneof: OneofRules, target: Target) -> None:
        tables = [(field, _Table()) for field in oneof.fields]
        for field, table in tables:
            table.add_field(field, target)
        names = frozenset(name for _, table in tables for name in table.choices)
        for field, table in tables:
            self.tags += table.tags
            self.synonyms += table.synonyms
            self.silent |= table.silent
            self.refusals |= table.refusals
            for name, (kinds, store) in table.named_choices():
                self._add_choice(name, (kinds, exclusive(store, target, oneof, field, names)))

    def named_choices(self) -> Iterator[tuple[str, _Choice]]:
        return ((name, choice) for name, choices in self.choices.items() for choice in choices)

    def _add_choice(self, name: str, choice: _Choice) -> None:
        self.choices.setdefault(name, []).append(choice)


def _noting(field: FieldRules) -> Store:
    """Stores a field that has several names."""
    store = field_store(field, read_message)

    def store_noting(message: Message, value: Any, place: Place, reading: Reading) -> None:
        reading.found(field, place)
        store(message, value, place, reading)

    return store_noting


def _shared_name(choices: list[_Choice]) -> Store:
    # Alone, a field says itself, and more exactly, what it expects.
    return choices[0][1] if len(choices) == 1 else _by_kind(choices)


def _refuse_synonyms(names: tuple[str, ...], members: dict[str, Any], place: Place) -> None:
    given = [name for name in names if members.get(name) is not None]
    if len(given) > 1:
        raise conflict(f"It means the same as '{given[0]}': only one of them can be given.", (place, given[1]))


def _refuse(refusal: Refusal, value: Any, place: Place) -> None:
    if not refusal.accepts(value):
        raise _unsupported(place, refusal.reason)


def _unsupported(place: Place, why: str) -> DecodeError:
    where = path_text(place)
    return DecodeError(where, f"Unsupported parameter: '{where}'. {why}", "unsupported")


def _itself(message: Message) -> Message:
    return message


def _within(target: Target, field: FieldRules) -> Target:
    name = field.descriptor.name
    return lambda message: getattr(target(message), name)


def _at(target: Target, store: Store) -> Store:
    if target is _itself:
        return store
    return lambda message, value, place, reading: store(target(message), value, place, reading)
