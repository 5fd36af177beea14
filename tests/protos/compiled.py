"""Descriptors of the protos in this folder, as protoc makes them."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from glimpse.server.parse.message_types.described_type import AnyReader
from glimpse.server.parse.message_types.descriptors import find_message_type

FOLDER = Path(__file__).parent
FILES = ("answers.proto", "older_answers.proto")


@functools.cache
def file_descriptor_set(*names: str, include_imports: bool = True) -> bytes:
    """Returns the serialized FileDescriptorSet of some of the files."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set"
        own = Path(grpc_tools.__file__).parent / "_proto"
        flags = ["--include_imports"] if include_imports else []
        assert protoc.main(["protoc", f"-I{FOLDER}", f"-I{own}", f"--descriptor_set_out={out}", *flags, *names]) == 0
        return out.read_bytes()


def type_names() -> list[str]:
    """Returns the full names of the messages that can be answered with."""
    files = FileDescriptorSet.FromString(file_descriptor_set(*FILES, include_imports=False)).file
    return [f"{file.package}.{message.name}" for file in files for message in file.message_type]


@functools.cache
def reader(name: str) -> AnyReader:
    """Returns what reads messages of a type."""
    return AnyReader(find_message_type(file_descriptor_set(*FILES), name))


@functools.cache
def message_class(name: str) -> Any:
    """Returns the class of a message of answers.v1."""
    return GetMessageClass(find_message_type(file_descriptor_set(*FILES), f"answers.v1.{name}"))
