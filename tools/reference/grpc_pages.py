"""The reference of the gRPC API for the site: a page for each proto file, from its definitions and comments."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from google.api import field_behavior_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from glimpse.gateway.openapi.comments import proto_comments
from tools.reference.markdown import cell, row

_PACKAGE = "glimpse.v1"
_OVERVIEW = """\
# gRPC API

The typed API, package `glimpse.v1`. It answers on the server's port (50051) and, as gRPC, grpc-web and
(with `--connect`) Connect, on the gateway's (8080). The protos are in `api/glimpse/v1`. `examples/build.sh` generates
stubs from them, and these pages are made of their comments.

"""


@dataclass(frozen=True, slots=True)
class _Api:
    """Where definitions are, and what their comments say."""

    comments: Mapping[str, str]
    """Comments by full name."""
    pages: dict[str, str] = field(default_factory=dict[str, str])
    """The page of each message and enum, by full name with a leading dot."""
    maps: dict[str, DescriptorProto] = field(default_factory=dict[str, DescriptorProto])
    """The entry messages of map fields, likewise."""

    def link(self, name: str) -> str:
        """A link to a message or an enum of the API; the name of any other in code."""
        short = name.removeprefix(".").removeprefix(f"{_PACKAGE}.")
        return f"[{short}]({self.pages[name]}#{anchor(short)})" if name in self.pages else f"`{short}`"


def grpc_pages(files: FileDescriptorSet) -> dict[str, str]:
    """Returns the Markdown pages by file name, index.md first.

    Args:
        files: the compiled protos with their source information.
    """
    api = _Api(proto_comments(files))
    ours = [file for file in files.file if file.package == _PACKAGE]
    for file in ours:
        for name, message in _messages(file):
            if message.options.map_entry:
                api.maps[f".{name}"] = message
            else:
                api.pages[f".{name}"] = _page_name(file)
        api.pages.update({f".{name}": _page_name(file) for name, _ in _enums(file)})
    return {"index.md": _overview(ours, api)} | {_page_name(file): _page(file, api) for file in ours}


def anchor(name: str) -> str:
    """The id of a definition's heading."""
    return name.replace(".", "-").lower()


def _page_name(file: FileDescriptorProto) -> str:
    return f"{PurePosixPath(file.name).stem}.md"


def _overview(files: list[FileDescriptorProto], api: _Api) -> str:
    lines = [_OVERVIEW + row("method", "what it does"), row("---", "---")]
    for file in files:
        for service in file.service:
            for method in service.method:
                name = f"{service.name}.{method.name}"
                text = api.comments.get(f"{_PACKAGE}.{name}", "").split("\n\n")[0]
                lines.append(row(f"[{name}]({_page_name(file)}#{anchor(name)})", cell(text)))
    return "\n".join(lines) + "\n"


def _page(file: FileDescriptorProto, api: _Api) -> str:
    sections = [f"# {file.name.removeprefix('glimpse/v1/')}"]
    for service in file.service:
        sections += _service(service, api)
    for name, message in _messages(file):
        if not message.options.map_entry:
            sections += _message(name, message, api)
    for name, enum in _enums(file):
        sections += _enum(name, enum, api)
    return "\n\n".join(sections) + "\n"


def _service(service: ServiceDescriptorProto, api: _Api) -> Iterator[str]:
    yield _heading(2, service.name)
    yield api.comments.get(f"{_PACKAGE}.{service.name}", "")
    for method in service.method:
        name = f"{service.name}.{method.name}"
        yield _heading(3, name, method.name)
        yield _signature(method, api)
        yield api.comments.get(f"{_PACKAGE}.{name}", "")


def _signature(method: MethodDescriptorProto, api: _Api) -> str:
    request, response = api.link(method.input_type), api.link(method.output_type)
    streams = ("stream of " if method.client_streaming else "", "stream of " if method.server_streaming else "")
    return f"{streams[0]}{request} → {streams[1]}{response}"


def _message(name: str, message: DescriptorProto, api: _Api) -> Iterator[str]:
    yield _heading(2, name.removeprefix(f"{_PACKAGE}."))
    yield api.comments.get(name, "")
    if message.field:
        rows = [row("field", "type", "meaning"), row("---", "---", "---")]
        rows += [_field(name, each, message, api) for each in message.field]
        yield "\n".join(rows)


def _field(owner: str, each: FieldDescriptorProto, message: DescriptorProto, api: _Api) -> str:
    text = api.comments.get(f"{owner}.{each.name}", "")
    notes: list[str] = []
    options: Any = each.options
    if field_behavior_pb2.REQUIRED in options.Extensions[field_behavior_pb2.field_behavior]:
        notes.append("Required.")
    if each.HasField("oneof_index") and not each.proto3_optional:
        notes.append(f"One of `{message.oneof_decl[each.oneof_index].name}`.")
    return row(f"`{each.name}`", _type(each, api), cell(" ".join([*notes, text])))


def _type(each: FieldDescriptorProto, api: _Api) -> str:
    if each.type_name in api.maps:
        key, value = api.maps[each.type_name].field
        return f"map of {_type(key, api)} to {_type(value, api)}"
    single = api.link(each.type_name) if each.type_name else _scalar(each)
    return f"repeated {single}" if each.label == FieldDescriptorProto.LABEL_REPEATED else single


def _scalar(each: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(each.type).removeprefix("TYPE_").lower()


def _enum(name: str, enum: EnumDescriptorProto, api: _Api) -> Iterator[str]:
    yield _heading(2, name.removeprefix(f"{_PACKAGE}."))
    yield api.comments.get(name, "")
    rows = [row("value", "meaning"), row("---", "---")]
    rows += [row(f"`{value.name}`", cell(api.comments.get(f"{name}.{value.name}", ""))) for value in enum.value]
    yield "\n".join(rows)


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """The file's messages by full name; nested ones follow those that hold them."""

    def nested(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        name = f"{prefix}.{message.name}"
        yield name, message
        for inner in message.nested_type:
            yield from nested(name, inner)

    for message in file.message_type:
        yield from nested(file.package, message)


def _enums(file: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto]]:
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}", enum
    for name, message in _messages(file):
        for enum in message.enum_type:
            yield f"{name}.{enum.name}", enum


def _heading(level: int, name: str, title: str | None = None) -> str:
    return f"{'#' * level} {title or name} {{ #{anchor(name)} }}"
