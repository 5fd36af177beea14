"""The comments of protos by full name, for descriptions in generated documents."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import (
    FileDescriptorProto,
    FileDescriptorSet,
)

_TOOL_PREFIXES = ("buf:",)
"""Comment lines that are directives for tools start with these."""


def proto_comments(files: FileDescriptorSet) -> dict[str, str]:
    """Returns the comment before each definition. Empty for files compiled without source information."""
    comments: dict[str, str] = {}
    for file in files.file:
        for location in file.source_code_info.location:
            text = _text(location.leading_comments)
            if text and (name := _name_at(file, location.path)):
                comments[name] = text
    return comments


def _text(comment: str) -> str:
    """Joins the lines of each paragraph."""
    lines = [line.strip() for line in comment.splitlines()]
    text = "\n".join(line for line in lines if not line.startswith(_TOOL_PREFIXES))
    return "\n\n".join(paragraph.replace("\n", " ").strip() for paragraph in text.split("\n\n")).strip()


def _name_at(file: FileDescriptorProto, path: Sequence[int]) -> str | None:
    """Returns the full name of the definition at a path of field numbers and indices. None if there is none."""
    names = [file.package]
    element: Any = file
    for number, index in zip(path[::2], path[1::2], strict=False):
        field = element.DESCRIPTOR.fields_by_number.get(number)
        if field is None or not field.is_repeated or field.message_type is None:
            return None
        element = getattr(element, field.name)[index]
        if not hasattr(element, "name"):
            return None
        names.append(element.name)
    return ".".join(names) if len(path) > 1 and len(path) % 2 == 0 else None
