"""Proto paths → JSON paths: where a field stands in the document that a REST client sent."""

import re
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from glimpse.dialect.options import is_map, map_entry
from glimpse.dialect.rules import FieldRules, message_rules

_SEGMENT = re.compile(r"([^.\[]+)((?:\[[^\]]*\])*)")


def json_path(descriptor: Descriptor, proto_path: str) -> str:
    """The JSON path of a field of this message type: "generation.top_p" → "top_p".

    Names that the message does not have, or that JSON does not, stay as they are: a path is for people to read.
    """
    names: list[str] = []
    message: Descriptor | None = descriptor
    field: FieldRules | None = None
    for name, indices in _SEGMENT.findall(proto_path):
        union = message is not None and message_rules(message).union
        field = None if message is None else _field(message, name)
        _append(names, "" if union or (field and field.flatten) else (field.name if field else name), indices)
        message = None if field is None else _value_type(field)
    if field is not None and field.flatten and message is not None:
        # A flattened message has no name of its own; the field that a bare string would set is the likeliest meant.
        scalar = message_rules(message).scalar_field
        _append(names, scalar.name if scalar else "", "")
    return ".".join(names)


def as_given(path: str, aliased: Mapping[str, str]) -> str:
    """A JSON path by the names that the client chose, of those that a field has.

    `aliased` has, an outer one before those inside: path by the field's own name → path by which it was given.
    """
    for own, given in aliased.items():
        if path == own or path.startswith((f"{own}.", f"{own}[")):
            path = given + path[len(own) :]
    return path


def _field(message: Descriptor, name: str) -> FieldRules | None:
    return next((field for field in message_rules(message).fields if field.descriptor.name == name), None)


def _value_type(field: FieldRules) -> Descriptor | None:
    if is_map(field.descriptor):
        return map_entry(field.descriptor)[1].message_type
    return field.descriptor.message_type


def _append(names: list[str], name: str, indices: str) -> None:
    """Appends a segment; one without a name belongs to what stands before it."""
    if names and not name:
        names[-1] += indices
    elif name or indices:
        names.append(name + indices)
