"""Reads oneofs from JSON objects: tagged ones, and fields that exclude each other."""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from google.protobuf.message import Message

from glimpse.dialect.options import message_type
from glimpse.dialect.rules import FieldRules, ForeignForm, JsonKind, OneofRules
from glimpse.near_names import NearNames
from glimpse.server.codec.document import DecodeError
from glimpse.server.codec.field_values import DecodeContext, ReadMessage, Setter, field_setter
from glimpse.server.codec.scalars import decode_error, truncated, wrong_type
from glimpse.server.field_path import FieldPath

Target: TypeAlias = Callable[[Message], Message]
"""The message of a JSON object → the message that has the field: itself, or one flattened into it."""


class _Tag:
    """The member that names the field that is set."""

    def __init__(self, oneof: OneofRules) -> None:
        self.name = oneof.tag or ""
        self.forms = _forms(oneof)
        self._near = NearNames(self.forms)
        self._choices = ", ".join(f"'{field.name}'" for field in oneof.fields)

    def form(self, chosen: Any, path: FieldPath) -> ForeignForm:
        """Returns the form that a value of the tag chooses. Raises DecodeError."""
        if chosen is None:
            raise decode_error("required, but missing", path, "missing_value")
        if type(chosen) is not str:
            raise wrong_type(JsonKind.STRING, chosen, path)
        if chosen not in self.forms:
            meant = self._near.nearest(chosen)
            hint = "" if meant is None else f"; did you mean '{meant}'?"
            raise decode_error(f"expected one of {self._choices}, got '{truncated(chosen)}'{hint}", path)
        return self.forms[chosen]


def variant_setter(oneof: OneofRules, read_message: ReadMessage) -> Setter:
    """Returns the setter of a message with an internally tagged oneof. Beside the tag, an object is the variant's."""
    tag = _Tag(oneof)
    default = None if oneof.default is None else oneof.default.name

    def set_variant(message: Message, members: dict[str, Any], path: FieldPath, context: DecodeContext) -> None:
        chosen = members.get(tag.name)
        form = tag.form(default if chosen is None else chosen, (path, tag.name))
        if form.field is None:
            raise decode_error(f"not supported. {form.reason}", (path, tag.name), "unsupported")
        variant = getattr(message, form.field.descriptor.name)
        variant.SetInParent()
        beside = {name: value for name, value in members.items() if name != tag.name}
        read_message(message_type(form.field.descriptor), variant, beside, path, context)

    return set_variant


class TagReader:
    """Reads an adjacently tagged oneof: the value of the tag is the name of the member to read.

    An `optional` oneof may be absent together with its tag, as in flattened messages, which may be absent themselves.
    """

    def __init__(self, oneof: OneofRules, target: Target, read_message: ReadMessage, *, optional: bool) -> None:
        self._tag = _Tag(oneof)
        self._optional = optional
        self._tag_only_with = oneof.tag_only_with
        self._target = target
        self._setters = {field.name: field_setter(field, read_message) for field in oneof.fields}
        self._beside = {field.name: _beside_reader(field, read_message) for field in oneof.fields}
        fields = tuple(name for field in oneof.fields for name in field.names)
        self.names = (self._tag.name, *fields)
        """The names of the members that only this oneof reads."""
        forms = self._tag.forms.values()
        beside = (name for field in oneof.fields for each in field.members_beside for name in each.names)
        self.known = frozenset((*self.names, *(name for form in forms for name in form.members), *beside))
        """The names of all members that it may read."""

    def read(
        self, message: Message, members: dict[str, Any], path: FieldPath, context: DecodeContext
    ) -> Collection[str]:
        """Reads the oneof and returns the names of the members that it read. Raises DecodeError."""
        if self._optional and all(members.get(name) is None for name in self.names):
            return ()
        form = self._form(members, path)
        field, chosen = form.field, self._member(form, members, path)
        if field is None or (form.reason and members.get(chosen) is not None):
            at = chosen if field is not None else self._tag.name
            raise decode_error(f"not supported. {form.reason}", (path, at), "unsupported")
        target, value = self._target(message), members.get(chosen)
        if chosen != field.name:
            context.record_name((path, field.name), (path, chosen))
        elif field.blamed is not None:
            _record_blamed(*field.blamed, value, (path, chosen), context)
        if value is not None:
            self._setters[field.name](target, value, (path, chosen), context)
        elif _may_be_empty(field, is_null=chosen in members):
            getattr(target, field.descriptor.name).SetInParent()
        else:
            raise self._missing(chosen, members, path)
        return (chosen, *self._beside[field.name](target, members, (path, chosen), context))

    def _member(self, form: ForeignForm, members: dict[str, Any], path: FieldPath) -> str:
        """Returns the member that has the value. Raises DecodeError if another one has a value too."""
        present = [name for name in form.members if members.get(name) is not None]
        chosen = next(iter(present), next((name for name in form.members if name in members), form.members[0]))
        for name in (*self.names[1:], *present):
            if name != chosen and members.get(name) is not None:
                raise decode_error(
                    f"not allowed if '{self._tag.name}' is '{form.tag}'", (path, name), "conflicting_values"
                )
        return chosen

    def _missing(self, chosen: str, members: dict[str, Any], path: FieldPath) -> DecodeError:
        """Returns the error for the absence of the chosen member, which another one may have been meant to be."""
        near = NearNames((chosen,))
        for name in members:
            if name != chosen and near.nearest(name) is not None:
                return decode_error(f"unknown field; did you mean '{chosen}'?", (path, name), "unsupported")
        return decode_error("required, but missing", (path, chosen), "missing_value")

    def _form(self, members: dict[str, Any], path: FieldPath) -> ForeignForm:
        chosen = members.get(self._tag.name)
        if chosen is None and self._tag_only_with is not None and members.get(self._tag_only_with) is None:
            chosen = next((name for name in self.names[1:] if name in members), None)
        return self._tag.form(chosen, (path, self._tag.name))


def _forms(oneof: OneofRules) -> dict[str, ForeignForm]:
    """Returns all forms of a oneof by tag: the names of its fields, and those of other APIs."""
    own = (
        ForeignForm(tag=name, members=(name,), field=field, reason="") for field in oneof.fields for name in field.names
    )
    return {form.tag: form for form in (*own, *oneof.forms)}


def _record_blamed(usual: str, blamed: str, value: Any, path: FieldPath, context: DecodeContext) -> None:
    """Makes errors about a value without its usual member name the blamed one; what it has is recorded later."""
    if not isinstance(value, dict) or value.get(usual) is None:
        context.record_name((path, usual), (path, blamed))


def _beside_reader(
    field: FieldRules, read_message: ReadMessage
) -> Callable[[Message, dict[str, Any], FieldPath, DecodeContext], Collection[str]]:
    """Returns the function that reads members of the field's message that stand beside it, and returns their names.

    Its path is that of the field.
    """
    by_name = {name: each for each in field.members_beside for name in each.names}

    def read(message: Message, members: dict[str, Any], path: FieldPath, context: DecodeContext) -> Collection[str]:
        beside = {name: members[name] for name in by_name if members.get(name) is not None}
        if not beside or path is None:
            return ()
        outer, chosen = path
        inside: Any = members.get(str(chosen))
        for name in beside:
            context.record_name((path, by_name[name].name), (outer, name))
            if isinstance(inside, dict) and any(inside.get(other) is not None for other in by_name[name].names):
                raise decode_error(f"also in '{chosen}'; send only one of them", (outer, name), "conflicting_values")
        inner = getattr(message, field.descriptor.name)
        read_message(message_type(field.descriptor), inner, beside, outer, context)
        return tuple(beside)

    return read


def exclusive(
    set_field: Setter,
    target: Target,
    oneof: OneofRules,
    field: FieldRules,
    names: Collection[str],
    scalar: FieldRules | None,
) -> Setter:
    """Returns a setter that refuses a second field of an untagged oneof. `names` are those of all its members.

    `scalar`: the field that a bare string sets in its message.
    """
    oneof_name, field_name = oneof.descriptor.name, field.descriptor.name

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
