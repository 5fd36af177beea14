"""Generates the OpenAPI document of the REST API: `python -m glimpse.gateway.openapi.document > openapi.json`.

Paths come from `google.api.http` and the bindings, schemas from the dialect's rules, and descriptions from the protos'
comments. Generic over endpoints.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from glimpse import __version__
from glimpse.dialect.bindings import Binding, bindings
from glimpse.dialect.dialects import DIALECTS
from glimpse.dialect.options import http_option, message_type
from glimpse.gateway.descriptors import VERBS
from glimpse.gateway.openapi.comments import proto_comments
from glimpse.gateway.openapi.schemas import Schema, Schemas
from glimpse.json.v1 import annotations_pb2

_DESCRIPTION = """\
An OpenAI-compatible REST API, and Anthropic's Messages. The same services are available as typed gRPC.

A member that is null counts as absent. A member that resembles a known one, such as `max_token`, is refused. Other
unknown members and those without effect are accepted, and the response header `x-glimpse-ignored-fields` lists them.
Keywords of JSON Schemas that cannot be enforced are left out, and `x-glimpse-unenforced` lists them.
"""

_FILE = "application/octet-stream"

_ERROR_MEMBERS: Schema = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {
        "message": {"type": "string", "description": "A description of the error for people."},
        "type": {"type": "string", "description": "The kind of error, such as `invalid_request_error`."},
        "param": {
            "type": ["string", "null"],
            "description": "The path of the member at fault, such as `messages[0].role`.",
        },
        "code": {
            "type": ["string", "null"],
            "description": "A stable code for programs, such as `invalid_value`.",
        },
    },
}
_ERROR: Schema = {
    "type": "object",
    "description": "An error.",
    "required": ["error"],
    "properties": {"error": _ERROR_MEMBERS},
}
_ERRORS: dict[str, Schema] = {
    "Error": _ERROR,
    "AnthropicError": {
        "type": "object",
        "description": "An error.",
        "required": ["type", "error"],
        "properties": {"type": {"type": "string", "const": "error"}, "error": _ERROR_MEMBERS},
    },
}
_ERROR_NAMES = {"glimpse.anthropic.v1.AnthropicService": "AnthropicError"}
"""Full name of a service → the schema of its errors; others have `Error`."""

SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a JWT."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "An API key."},
    "certificate": {"type": "mutualTLS", "description": "A client certificate."},
}
"""Ways to say who is calling. Which of them a server takes, if any, is its operator's choice."""


def openapi_document(files: FileDescriptorSet) -> dict[str, Any]:
    """Returns the document of an API. Descriptions are the comments in the source information of `files`."""
    found = list(_bindings(files))
    comments = proto_comments(files)
    components: dict[str, Schema] = {}
    schemas = {
        service: Schemas(dialect, comments, response_only=_response_only(found), components=components)
        for service, dialect in DIALECTS.items()
    }
    paths: dict[str, dict[str, Any]] = {}
    for binding in found:
        verb, template = _route(binding)
        path = re.sub(r"{(\w+)=[^}]*}", r"{\1}", template)
        paths.setdefault(path, {})[verb] = _operation(
            binding, path, schemas[binding.facade.containing_service.full_name], comments
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Glimpse", "version": __version__, "description": _DESCRIPTION},
        "security": [{}, *({name: []} for name in SECURITY_SCHEMES)],
        "paths": paths,
        "components": {
            "securitySchemes": SECURITY_SCHEMES,
            "schemas": {**_ERRORS, **dict(sorted(components.items()))},
        },
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
    if verb not in VERBS:
        raise ValueError(f"{binding.facade.full_name} has no HTTP verb and path")
    return verb, getattr(rule, verb)


def _operation(binding: Binding, path: str, schemas: Schemas, comments: dict[str, str]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": binding.facade.name}
    if comment := comments.get(binding.facade.full_name):
        operation["description"] = comment
    if http_option(binding.facade).body:
        operation["requestBody"] = {"required": True, "content": _body(binding, schemas)}
    else:
        operation["parameters"] = [_parameter(field, path, schemas) for field in binding.unary.input_type.fields]
    error = _ERROR_NAMES.get(binding.facade.containing_service.full_name, "Error")
    operation["responses"] = {
        "200": {"description": "The response.", "content": _responses(binding, schemas)},
        "default": {
            "description": "An error.",
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}},
        },
    }
    return operation


def _body(binding: Binding, schemas: Schemas) -> dict[str, Any]:
    if binding.form is not None:
        return {"multipart/form-data": {"schema": _form(binding.form, binding.unary.input_type, schemas)}}
    request = schemas.reference(binding.unary.input_type)
    if binding.stream_member is None:
        return {"application/json": {"schema": request}}
    stream = {
        "type": ["boolean", "null"],
        "default": False,
        "description": "Whether the response is a stream of server-sent events.",
    }
    schema = {"allOf": [request, {"type": "object", "properties": {binding.stream_member: stream}}]}
    return {"application/json": {"schema": schema}}


def _form(form: annotations_pb2.FileForm, request: Descriptor, schemas: Schemas) -> Schema:
    header = schemas.reference(message_type(request.fields_by_name[form.header]))
    file = {"description": "The file.", "contentMediaType": _FILE}
    return {"allOf": [header, {"type": "object", "properties": {form.file: file}, "required": [form.file]}]}


def _parameter(field: FieldDescriptor, path: str, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.field(schemas.dialect.field(field))
    in_path = f"{{{field.name}}}" in path
    parameter = {"name": field.name, "in": "path" if in_path else "query", "required": in_path}
    description = schema.pop("description", None)
    return parameter | ({"description": description} if description else {}) | {"schema": schema}


def _responses(binding: Binding, schemas: Schemas) -> dict[str, Any]:
    if binding.content is not None:
        return {_FILE: {"schema": {"description": "The file.", "contentMediaType": _FILE}}}
    responses: dict[str, Any] = {"application/json": {"schema": schemas.reference(binding.unary.output_type)}}
    if binding.stream is not None:
        chunk = schemas.reference(binding.stream.output_type)
        end = f" The last event is `data: {binding.stream_end}`." if binding.stream_end else ""
        name = "`event: ` and its type, " if binding.names_events else ""
        responses["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": f"If the body asks for a stream: events, each {name}`data: ` and a JSON document.{end}",
                "contentMediaType": "application/json",
                "contentSchema": chunk,
            }
        }
    return responses


def _response_only(found: list[Binding]) -> frozenset[Descriptor]:
    requests: set[Descriptor] = set()
    responses: set[Descriptor] = set()
    for binding in found:
        _add_reachable(binding.unary.input_type, requests)
        _add_reachable(binding.unary.output_type, responses)
        if binding.stream is not None:
            _add_reachable(binding.stream.output_type, responses)
    return frozenset(responses - requests)


def _add_reachable(descriptor: Descriptor, reached: set[Descriptor]) -> None:
    """Adds the message and the messages that it contains."""
    if descriptor not in reached:
        reached.add(descriptor)
        for field in descriptor.fields:
            if field.message_type is not None:
                _add_reachable(field.message_type, reached)


def compiled_protos(root: Path) -> FileDescriptorSet:
    """Compiles the protos with their comments, using the development tool `buf`."""
    buf = Path(sys.executable).with_name("buf")
    command = [buf, "build", root, "--as-file-descriptor-set", "-o", "-#format=binpb"]
    return FileDescriptorSet.FromString(subprocess.run(command, check=True, capture_output=True).stdout)


def write(document: Callable[[FileDescriptorSet], dict[str, Any]]) -> None:
    """Writes the document of this repository's protos to standard output."""
    files = compiled_protos(Path(__file__).resolve().parents[2])
    sys.stdout.write(json.dumps(document(files), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(openapi_document)
