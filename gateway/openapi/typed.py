"""Generates the OpenAPI document of the typed methods: `python -m glimpse.gateway.openapi.typed > openapi_typed.json`.

Paths come from `google.api.http`, schemas are those of protobuf's JSON, and descriptions are the protos' comments.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import status_pb2

from glimpse import __version__
from glimpse.dialect.options import bounds_option, enum_type, http_option, is_map, is_required, map_entry, message_type
from glimpse.gateway import descriptors
from glimpse.gateway.openapi.comments import proto_comments
from glimpse.gateway.openapi.document import SECURITY_SCHEMES, write
from glimpse.gateway.openapi.schemas import SCALARS, Schema, number

_DESCRIPTION = """\
The methods of the typed gRPC API as JSON, in protobuf's form: names in lowerCamelCase (those of the protos are accepted
too), enums by their names, 64-bit integers as strings, bytes in base64. Unknown members are refused. An error is a
`google.rpc.Status`. A body, or a line of one, has at most 8 MiB.

[OpenAI's API](/openapi.json) is on paths of its own.
"""

_STATUS = status_pb2.DESCRIPTOR.message_types_by_name["Status"]

_WELL_KNOWN: Mapping[str, Schema] = {
    "google.protobuf.Any": {"type": "object", "properties": {"@type": {"type": "string"}}, "required": ["@type"]},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
}
"""Messages whose JSON is not an object of their fields."""

_OF_64_BITS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def openapi_document(files: FileDescriptorSet) -> dict[str, Any]:
    """Returns the document. Descriptions are the comments in the source information of `files`."""
    schemas = _Schemas(proto_comments(files))
    paths: dict[str, dict[str, Any]] = {}
    for method in _methods():
        for verb, template in descriptors.bindings(method):
            path = re.sub(r"{(\w+)=[^}]*}", r"{\1}", template)
            paths.setdefault(path, {})[verb.lower()] = schemas.operation(method, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Glimpse, typed", "version": __version__, "description": _DESCRIPTION},
        "security": [{}, *({name: []} for name in SECURITY_SCHEMES)],
        "paths": paths,
        "components": {"securitySchemes": SECURITY_SCHEMES, "schemas": dict(sorted(schemas.components.items()))},
    }


def _methods() -> Iterator[MethodDescriptor]:
    for service in descriptors.services():
        if service.full_name.startswith("glimpse.v1."):
            yield from service.methods


class _Schemas:
    """The schemas of messages and enums, each created on first reference."""

    def __init__(self, comments: Mapping[str, str]) -> None:
        self.components: dict[str, Schema] = {}
        self._comments = comments

    def operation(self, method: MethodDescriptor, path: str) -> dict[str, Any]:
        operation: dict[str, Any] = {"operationId": method.name, "tags": [method.containing_service.name]}
        operation |= self._description(method.full_name)
        request = method.input_type
        if http_option(method).body:
            kind = "application/x-ndjson" if method.client_streaming else "application/json"
            content = {kind: _streamed(self._message(request), method.client_streaming)}
            operation["requestBody"] = {"required": True, "content": content}
        else:
            operation["parameters"] = [self._parameter(field, path) for field in request.fields]
        kind = "application/x-ndjson" if method.server_streaming else "application/json"
        response = self._message(method.output_type)
        if method.server_streaming:
            status = self._message(_STATUS)
            lines = ({"result": response}, {"error": status})
            response = {"oneOf": [{"type": "object", "properties": p, "required": list(p)} for p in lines]}
        operation["responses"] = {
            "200": {
                "description": "The response.",
                "content": {kind: _streamed(response, method.server_streaming)},
            },
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": self._message(_STATUS)}},
            },
        }
        return operation

    def _parameter(self, field: FieldDescriptor, path: str) -> dict[str, Any]:
        in_path = f"{{{field.name}}}" in path
        parameter = {
            "name": field.name if in_path else field.json_name,
            "in": "path" if in_path else "query",
            "required": in_path,
        }
        return parameter | self._description(field.full_name) | {"schema": self._field(field)}

    def _message(self, descriptor: Descriptor) -> Schema:
        if descriptor.full_name in _WELL_KNOWN:
            return dict(_WELL_KNOWN[descriptor.full_name])
        name = descriptor.full_name.removeprefix("glimpse.v1.")
        if name not in self.components:
            self.components[name] = {}  # so that a message can refer to itself
            self.components[name] |= self._object(descriptor)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, descriptor: Descriptor) -> Schema:
        fields = {
            field.json_name: self._field(field) | self._description(field.full_name) for field in descriptor.fields
        }
        schema = self._description(descriptor.full_name) | {"type": "object", "properties": fields}
        required = [field.json_name for field in descriptor.fields if is_required(field)]
        return schema | ({"required": required} if required else {})

    def _field(self, field: FieldDescriptor) -> Schema:
        bounds = bounds_option(field)
        if is_map(field):
            return {"type": "object", "additionalProperties": self._value(map_entry(field)[1])}
        if field.is_repeated:
            return {"type": "array", "items": self._value(field)} | _limits(bounds, "minItems", "maxItems")
        is_number = field.cpp_type not in _OF_64_BITS and field.message_type is None
        return self._value(field) | (_limits(bounds, "minimum", "maximum") if is_number else {})

    def _value(self, field: FieldDescriptor) -> Schema:
        if field.message_type is not None:
            return self._message(message_type(field))
        if field.enum_type is not None:
            return self._enum(enum_type(field))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        if field.cpp_type in _OF_64_BITS:
            return {"type": "string", "pattern": "^-?[0-9]+$"}
        return dict(SCALARS[field.cpp_type])

    def _enum(self, descriptor: EnumDescriptor) -> Schema:
        self.components.setdefault(
            descriptor.name,
            self._description(descriptor.full_name)
            | {"type": "string", "enum": [value.name for value in descriptor.values]},
        )
        return {"$ref": f"#/components/schemas/{descriptor.name}"}

    def _description(self, full_name: str) -> Schema:
        comment = self._comments.get(full_name)
        return {"description": comment} if comment else {}


def _streamed(schema: Schema, is_stream: bool) -> dict[str, Any]:
    """Returns the media type of a message, or of lines with a message each."""
    if not is_stream:
        return {"schema": schema}
    lines = {"description": "A JSON document in each line.", "contentMediaType": "application/json"}
    return {"schema": {"type": "string", **lines, "contentSchema": schema}}


def _limits(bounds: Any, smallest: str, largest: str) -> Schema:
    found = ((smallest, "min"), (largest, "max"))
    return {name: number(getattr(bounds, bound)) for name, bound in found if bounds.HasField(bound)}


if __name__ == "__main__":
    write(openapi_document)
