"""Converts proto paths to JSON paths: where a field stands in the document that a REST client sent."""

import re
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from glimpse.dialect.options import is_map, map_entry
from glimpse.dialect.rules import FieldRules, message_rules

_SEGMENT = re.compile(r"([^.\[]+)((?:\[[^\]]*\])*)")


def json_path(descriptor: Descriptor, proto_path: str) -> str:
    """Returns the JSON path of a field of this message type: "top_p" for "generation.top_p".

    Unknown names are kept as they are, since the path is only shown to people.
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
        # A flattened message has no name in JSON. The field that a bare string sets is the most likely one.
        scalar = message_rules(message).scalar_field
        _append(names, scalar.name if scalar else "", "")
    return ".".join(names)


def with_sent_names(path: str, aliased: Mapping[str, str]) -> str:
    """Returns a JSON path with the names that the client used.

    Args:
        path: a JSON path by the fields' own names.
        aliased: path by the field's own name → the path that the client used, outer paths first.
    """
    for own, sent in aliased.items():
        if path == own or path.startswith((f"{own}.", f"{own}[")):
            path = sent + path[len(own) :]
    return path


def _field(message: Descriptor, name: str) -> FieldRules | None:
    return next((field for field in message_rules(message).fields if field.descriptor.name == name), None)


def _value_type(field: FieldRules) -> Descriptor | None:
    if is_map(field.descriptor):
        return map_entry(field.descriptor)[1].message_type
    return field.descriptor.message_type


def _append(names: list[str], name: str, indices: str) -> None:
    """Appends a segment. The indices of a segment without a name belong to the segment before it."""
    if names and not name:
        names[-1] += indices
    elif name or indices:
        names.append(name + indices)
