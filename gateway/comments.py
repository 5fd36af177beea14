"""The comments of protos, by the full name of what they stand at. They are the API's manual."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import (
    FileDescriptorProto,
    FileDescriptorSet,
)

_NOT_FOR_READERS = ("buf:",)
"""What begins so is said to a tool."""


def proto_comments(files: FileDescriptorSet) -> dict[str, str]:
    """The comment before each definition; none for files that were compiled without their source's information."""
    comments: dict[str, str] = {}
    for file in files.file:
        for location in file.source_code_info.location:
            text = _text(location.leading_comments)
            if text and (name := _name_at(file, location.path)):
                comments[name] = text
    return comments


def _text(comment: str) -> str:
    """Paragraphs on a line each: how a source wraps them is nothing to a reader."""
    lines = [line.strip() for line in comment.splitlines()]
    wanted = "\n".join(line for line in lines if not line.startswith(_NOT_FOR_READERS))
    return "\n\n".join(paragraph.replace("\n", " ").strip() for paragraph in wanted.split("\n\n")).strip()


def _name_at(file: FileDescriptorProto, path: Sequence[int]) -> str | None:
    """The full name of the definition at a path of field numbers and indices; None for any other place."""
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
