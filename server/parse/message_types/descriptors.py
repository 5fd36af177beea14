"""Finds a message type in a serialized FileDescriptorSet, which a client sends."""

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from glimpse.near_names import NearNames

_WELL_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
    )
}  # fmt: skip
"""Files that every pool has, so that their types mean what they mean everywhere."""
_MAX_REASON = 300


class DescriptorError(ValueError):
    """A message type that cannot be used. The message names the file, the type or the field."""


def find_message_type(data: bytes, name: str) -> Descriptor:
    """Returns the type of this full name. Takes milliseconds for large sets.

    Raises:
        DescriptorError: `data` is not a valid FileDescriptorSet with all that its files import, or lacks the type.
    """
    try:
        files = FileDescriptorSet.FromString(data).file
    except DecodeError:
        raise DescriptorError("expected a serialized google.protobuf.FileDescriptorSet, got other bytes") from None
    own = {file.name: file for file in files if file.name not in _WELL_KNOWN}
    pool = descriptor_pool.DescriptorPool()
    for serialized in _WELL_KNOWN.values():
        pool.AddSerializedFile(serialized)
    for file in _imported_first(own):
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise DescriptorError(f"the file {file.name[:_MAX_REASON]!r}: {str(error)[:_MAX_REASON]}") from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        near = NearNames(_names(own.values())).nearest(name)
        meant = "" if near is None else f"; did you mean {near!r}?"
        raise DescriptorError(f"no file has the message type {name[:_MAX_REASON]!r}{meant}") from None


def _imported_first(files: Mapping[str, FileDescriptorProto]) -> Iterator[FileDescriptorProto]:
    for name, file in files.items():
        for imported in file.dependency:
            if imported not in files and imported not in _WELL_KNOWN:
                raise DescriptorError(
                    f"the file {name[:_MAX_REASON]!r} imports {imported[:_MAX_REASON]!r}, which is missing: "
                    "send it too (protoc --include_imports)"
                )
    imports = {name: [each for each in file.dependency if each in files] for name, file in files.items()}
    try:
        yield from (files[name] for name in TopologicalSorter(imports).static_order())
    except CycleError:
        raise DescriptorError("the files import each other in a circle") from None


def _names(files: Iterable[FileDescriptorProto]) -> Iterator[str]:
    """Yields the full names of all message types."""
    waiting: list[tuple[str, DescriptorProto]] = [(file.package, each) for file in files for each in file.message_type]
    while waiting:
        scope, message = waiting.pop()
        name = f"{scope}.{message.name}" if scope else message.name
        yield name
        waiting += ((name, each) for each in message.nested_type)
