"""The OpenAPI document of the REST door, generated from the protos: `python -m glimpse.gateway.openapi > openapi.json`.

Paths come from `google.api.http` and the bindings, schemas from the dialect's rules, descriptions from the comments. No
endpoint is known by name.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from glimpse import __version__
from glimpse.dialect.bindings import Binding, bindings
from glimpse.dialect.options import http_option
from glimpse.dialect.rules import field_rules
from glimpse.gateway.comments import proto_comments
from glimpse.gateway.openapi_schemas import Schema, Schemas

_DESCRIPTION = """\
OpenAI-compatible REST. The same service is spoken natively as gRPC, of which this is a dialect.

A member that is null counts as not given. Members that are not understood change nothing and are listed in the response
header `x-glimpse-unknown-fields`.
"""

_ERROR: Schema = {
    "type": "object",
    "description": "What went wrong.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "What is wrong, for people."},
                "type": {"type": "string", "description": "The kind of error, such as invalid_request_error."},
                "param": {"type": ["string", "null"], "description": "The member at fault, by its path in the body."},
                "code": {"type": ["string", "null"], "description": "What is wrong, for programs."},
            },
        }
    },
}

_VERBS = ("get", "put", "post", "delete", "patch")


def openapi_document(files: FileDescriptorSet) -> dict[str, Any]:
    """The document of an API. Its descriptions are those comments that `files` have in their source information."""
    found = list(_bindings(files))
    comments = proto_comments(files)
    schemas = Schemas(comments, only_written=_only_written(found))
    paths: dict[str, dict[str, Any]] = {}
    for binding in found:
        verb, template = _route(binding)
        path = re.sub(r"{(\w+)=[^}]*}", r"{\1}", template)
        paths.setdefault(path, {})[verb] = _operation(binding, path, schemas, comments)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Glimpse", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR, **dict(sorted(schemas.components.items()))}},
    }


def _bindings(files: FileDescriptorSet) -> Iterator[Binding]:
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    for file in files.file:
        for service in pool.FindFileByName(file.name).services_by_name.values():
            yield from bindings(service)


def _route(binding: Binding) -> tuple[str, str]:
    rule = http_option(binding.facade)
    verb = rule.WhichOneof("pattern")
    if verb not in _VERBS:
        raise ValueError(f"{binding.facade.full_name} has no HTTP verb and path of its own")
    return verb, getattr(rule, verb)


def _operation(binding: Binding, path: str, schemas: Schemas, comments: dict[str, str]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": binding.facade.name}
    if comment := comments.get(binding.facade.full_name):
        operation["description"] = comment
    if http_option(binding.facade).body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(binding, schemas)}},
        }
    else:
        operation["parameters"] = [_parameter(field, path, schemas) for field in binding.unary.input_type.fields]
    operation["responses"] = {
        "200": {"description": "The answer.", "content": _answers(binding, schemas)},
        "default": {
            "description": "Anything that goes wrong.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        },
    }
    return operation


def _body(binding: Binding, schemas: Schemas) -> Schema:
    request = schemas.reference(binding.unary.input_type)
    if binding.stream_member is None:
        return request
    stream = {
        "type": ["boolean", "null"],
        "default": False,
        "description": "The answer comes piece by piece, as server-sent events.",
    }
    return {"allOf": [request, {"type": "object", "properties": {binding.stream_member: stream}}]}


def _parameter(field: FieldDescriptor, path: str, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.field(field_rules(field))
    in_path = f"{{{field.name}}}" in path
    parameter = {"name": field.name, "in": "path" if in_path else "query", "required": in_path}
    description = schema.pop("description", None)
    return parameter | ({"description": description} if description else {}) | {"schema": schema}


def _answers(binding: Binding, schemas: Schemas) -> dict[str, Any]:
    answers: dict[str, Any] = {"application/json": {"schema": schemas.reference(binding.unary.output_type)}}
    if binding.stream is not None:
        piece = schemas.reference(binding.stream.output_type)
        end = f" The last event is `data: {binding.stream_end}`." if binding.stream_end else ""
        answers["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": f"Where the body asks for it: a row of events, each `data: ` and a document.{end}",
                "contentMediaType": "application/json",
                "contentSchema": piece,
            }
        }
    return answers


def _only_written(found: list[Binding]) -> frozenset[Descriptor]:
    sent: set[Descriptor] = set()
    written: set[Descriptor] = set()
    for binding in found:
        _reach(binding.unary.input_type, sent)
        _reach(binding.unary.output_type, written)
        if binding.stream is not None:
            _reach(binding.stream.output_type, written)
    return frozenset(written - sent)


def _reach(descriptor: Descriptor, reached: set[Descriptor]) -> None:
    """Adds the message and all that it holds."""
    if descriptor not in reached:
        reached.add(descriptor)
        for field in descriptor.fields:
            if field.message_type is not None:
                _reach(field.message_type, reached)


def compiled_protos(root: Path) -> FileDescriptorSet:
    """The repository's protos with their comments, by `buf`, which is a tool of development."""
    buf = Path(sys.executable).with_name("buf")
    command = [buf, "build", root, "--as-file-descriptor-set", "-o", "-#format=binpb"]
    return FileDescriptorSet.FromString(subprocess.run(command, check=True, capture_output=True).stdout)


def main() -> None:
    """Writes the document to standard output."""
    document = openapi_document(compiled_protos(Path(__file__).resolve().parents[1]))
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
