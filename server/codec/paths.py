"""Converts proto paths to JSON paths: where a field stands in the document that a REST client sent."""

import re
from collections.abc import Mapping

from google.protobuf.descriptor import Descriptor

from glimpse.dialect.rules import Dialect, FieldRules, MessageRules

_SEGMENT = re.compile(r"([^.\[]+)((?:\[[^\]]*\])*)")


def json_path(dialect: Dialect, descriptor: Descriptor, proto_path: str) -> str:
    """Returns the JSON path of a field of this message type: "top_p" for "generation.top_p".

    Unknown names are kept as they are, since the path is only shown to people.
    """
    names: list[str] = []
    message: Descriptor | None = descriptor
    field: FieldRules | None = None
    for name, indices in _SEGMENT.findall(proto_path):
        rules = None if message is None else dialect.message(message)
        field = None if rules is None else _field(rules, name)
        _append(
            names,
            "" if (rules and rules.union) or (field and field.inline) else (field.name if field else name),
            indices,
        )
        message = None if field is None else _value_type(field)
    if field is not None and field.inline and message is not None:
        # A flattened message has no name in JSON. The field that a bare string sets is the most likely one.
        scalar = dialect.message(message).scalar_field
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


def source_path(path: str, adapted: Mapping[str, str]) -> str:
    """Returns where a field of a request stands in the one that it was made of.

    Args:
        path: a proto path.
        adapted: path of a field → the path of what it was made of. The longest one that leads to the field counts.
    """
    for end in range(len(path), 0, -1):
        if path[:end] in adapted and path[end : end + 1] in ("", ".", "["):
            return adapted[path[:end]] + path[end:]
    return path


def _field(message: MessageRules, name: str) -> FieldRules | None:
    return next((field for field in message.fields if field.descriptor.name == name), None)


def _value_type(field: FieldRules) -> Descriptor | None:
    return (field if field.entry is None else field.entry[1]).descriptor.message_type


def _append(names: list[str], name: str, indices: str) -> None:
    """Appends a segment. The indices of a segment without a name belong to the segment before it."""
    if names and not name:
        names[-1] += indices
    elif name or indices:
        names.append(name + indices)
