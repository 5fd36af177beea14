"""Reads oneofs from JSON objects: tagged ones, and fields that exclude each other."""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from google.protobuf.message import Message

from glimpse.dialect.rules import FieldRules, JsonKind, OneofRules, message_rules
from glimpse.server.field_path import FieldPath
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.field_values import DecodeContext, ReadMessage, Setter, field_setter
from glimpse.server.openai.near_names import NearNames
from glimpse.server.openai.scalars import decode_error, truncated, wrong_type

Target: TypeAlias = Callable[[Message], Message]
"""The message of a JSON object → the message that has the field: itself, or one flattened into it."""


class TagReader:
    """Reads a tagged oneof: the value of the tag is the name of the member to read.

    An `optional` oneof may be absent together with its tag, as in flattened messages, which may be absent themselves.
    """

    def __init__(
        self, oneof: OneofRules, tag: str, target: Target, read_message: ReadMessage, *, optional: bool
    ) -> None:
        self._tag = tag
        self._optional = optional
        self._tag_only_with = oneof.tag_only_with
        self._target = target
        self._fields = {name: field for field in oneof.fields for name in field.names}
        self._setters = {name: field_setter(field, read_message) for name, field in self._fields.items()}
        self.names = (tag, *self._fields)
        """The names of the members that it reads."""
        self._tags = NearNames(self._fields)
        self._choices = ", ".join(f"'{field.name}'" for field in oneof.fields)

    def read(self, message: Message, members: dict[str, Any], path: FieldPath, context: DecodeContext) -> None:
        if self._optional and all(members.get(name) is None for name in self.names):
            return
        chosen = self._chosen(members, path)
        for name in self._fields:
            if name != chosen and members.get(name) is not None:
                raise decode_error(f"not allowed if '{self._tag}' is '{chosen}'", (path, name), "conflicting_values")
        context.record_alias(self._fields[chosen], (path, chosen))
        target, value = self._target(message), members.get(chosen)
        if value is not None:
            self._setters[chosen](target, value, (path, chosen), context)
        elif _may_be_empty(self._fields[chosen], is_null=chosen in members):
            getattr(target, self._fields[chosen].descriptor.name).SetInParent()
        else:
            raise self._missing(chosen, members, path)

    def _missing(self, chosen: str, members: dict[str, Any], path: FieldPath) -> DecodeError:
        """Returns the error for the absence of the chosen member, which another one may have been meant to be."""
        near = NearNames((chosen,))
        for name in members:
            if name != chosen and near.nearest(name) is not None:
                return decode_error(f"unknown field; did you mean '{chosen}'?", (path, name), "unsupported")
        return decode_error("required, but missing", (path, chosen), "missing_value")

    def _chosen(self, members: dict[str, Any], path: FieldPath) -> str:
        chosen = members.get(self._tag)
        tag_path = (path, self._tag)
        if chosen is None and self._tag_only_with is not None and members.get(self._tag_only_with) is None:
            chosen = next((name for name in self._fields if name in members), None)
        if chosen is None:
            raise decode_error("required, but missing", tag_path, "missing_value")
        if type(chosen) is not str:
            raise wrong_type(JsonKind.STRING, chosen, tag_path)
        if chosen not in self._fields:
            meant = self._tags.nearest(chosen)
            hint = "" if meant is None else f"; did you mean '{meant}'?"
            raise decode_error(f"expected one of {self._choices}, got '{truncated(chosen)}'{hint}", tag_path)
        return chosen


def exclusive(
    set_field: Setter, target: Target, oneof: OneofRules, field: FieldRules, names: Collection[str]
) -> Setter:
    """Returns a setter that refuses a second field of an untagged oneof. `names` are those of all its members."""
    oneof_name, field_name = oneof.descriptor.name, field.descriptor.name
    scalar = message_rules(oneof.descriptor.containing_type).scalar_field

    def set_exclusively(message: Message, value: Any, path: FieldPath, context: DecodeContext) -> None:
        present = target(message).WhichOneof(oneof_name)
        if present is not None and present != field_name:
            listed = ", ".join(f"'{name}'" for name in sorted(names))
            raise decode_error(f"send only one of {listed}", path, "conflicting_values")
        if scalar is not None and scalar in oneof.fields and field is not scalar and path is not None:
            # Errors about the message itself name the field that a bare string sets.
            context.record_name((path[0], scalar.name), path)
        set_field(message, value, path, context)

    return set_exclusively


def _may_be_empty(field: FieldRules, *, is_null: bool) -> bool:
    """Null stands for an empty message, and a message without fields may be left out."""
    message = field.descriptor.message_type
    return message is not None and (is_null or not message.fields)
