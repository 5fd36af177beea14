"""JSON objects → oneofs: the tag that says which field is meant, and fields that exclude each other."""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from google.protobuf.message import Message

from glimpse.dialect.rules import FieldRules, JsonKind, OneofRules
from glimpse.server.field_path import Place, path_text
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.field_values import Reading, ReadMessage, Store, field_store
from glimpse.server.openai.scalars import abridged, invalid_value, wrong_type

Target: TypeAlias = Callable[[Message], Message]
"""From the message that an object is read into to the message, itself or flattened into it, that has the field."""


class TagReader:
    """Reads a tagged oneof: the tag's value is the name of the member that is read.

    One that is `optional` may be absent with its tag; that is so in flattened messages, which may themselves be absent.
    """

    def __init__(
        self, oneof: OneofRules, tag: str, target: Target, read_message: ReadMessage, *, optional: bool
    ) -> None:
        self._tag = tag
        self._optional = optional
        self._tag_beside = oneof.tag_only_with
        self._target = target
        self._fields = {name: field for field in oneof.fields for name in field.names}
        self._stores = {name: field_store(field, read_message) for name, field in self._fields.items()}
        self.names = (tag, *self._fields)
        """The members that it reads."""
        self._supported = ", ".join(f"'{field.name}'" for field in oneof.fields)

    def read(self, message: Message, members: dict[str, Any], place: Place, reading: Reading) -> None:
        if self._optional and all(members.get(name) is None for name in self.names):
            return
        chosen = self._chosen(members, place)
        for name in self._fields:
            if name != chosen and members.get(name) is not None:
                raise conflict(f"It cannot stand beside {self._tag} '{chosen}'.", (place, name))
        reading.found(self._fields[chosen], (place, chosen))
        target, value = self._target(message), members.get(chosen)
        if value is not None:
            self._stores[chosen](target, value, (place, chosen), reading)
        elif _may_be_empty(self._fields[chosen], is_null=chosen in members):
            getattr(target, self._fields[chosen].descriptor.name).SetInParent()
        else:
            raise _missing((place, chosen))

    def _chosen(self, members: dict[str, Any], place: Place) -> str:
        chosen = members.get(self._tag)
        where = (place, self._tag)
        if chosen is None and self._tag_beside is not None and members.get(self._tag_beside) is None:
            chosen = next((name for name in self._fields if name in members), None)
        if chosen is None:
            raise _missing(where)
        if type(chosen) is not str:
            raise wrong_type(JsonKind.STRING, chosen, where)
        if chosen not in self._fields:
            raise invalid_value(f"'{abridged(chosen)}'. Supported values are: {self._supported}.", where)
        return chosen


def exclusive(store: Store, target: Target, oneof: OneofRules, field: FieldRules, names: Collection[str]) -> Store:
    """Stores a field of an untagged oneof, and refuses a second one; `names` are those of all its members."""
    oneof_name, field_name = oneof.descriptor.name, field.descriptor.name

    def store_alone(message: Message, value: Any, place: Place, reading: Reading) -> None:
        present = target(message).WhichOneof(oneof_name)
        if present is not None and present != field_name:
            listed = ", ".join(f"'{name}'" for name in sorted(names))
            raise conflict(f"Only one of {listed} can be given.", place)
        store(message, value, place, reading)

    return store_alone


def conflict(what: str, place: Place) -> DecodeError:
    """The error for a member that contradicts another."""
    where = path_text(place)
    return DecodeError(where, f"Conflicting parameter: '{where}'. {what}", "conflicting_values")


def _may_be_empty(field: FieldRules, *, is_null: bool) -> bool:
    """A null means a message of which nothing is known yet; a message without fields need not be said at all."""
    message = field.descriptor.message_type
    return message is not None and (is_null or not message.fields)


def _missing(place: Place) -> DecodeError:
    where = path_text(place)
    return DecodeError(where, f"Missing required parameter: '{where}'.", "missing_value")
