"""The reference of the REST API for the site: one page, from the OpenAPI document."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tools.reference.markdown import cell, row

_Schema = Mapping[str, Any]

_OVERVIEW = """\
# REST API

OpenAI's API, on the gateway's port (8080). A member that is null counts as absent. Members without effect, unknown ones
among them, are listed in the header `x-glimpse-ignored-fields` of the response, and keywords of JSON Schemas that are
not enforced in `x-glimpse-unenforced`. [openapi.json](openapi.json) has all of this for programs.
[Compatibility](../compatibility.md) says which members of OpenAI's and vLLM's are refused.

"""


def rest_page(document: Mapping[str, Any]) -> str:
    """Returns the page in Markdown: operations first, then the schemas that they name."""
    sections = [_OVERVIEW.rstrip()]
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            sections += _operation(f"{verb.upper()} {path}", operation)
    sections.append("## Schemas")
    for name, schema in document["components"]["schemas"].items():
        sections += _schema(name, schema)
    return "\n\n".join(section for section in sections if section) + "\n"


def _operation(title: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"## `{title}` {{ #{operation['operationId'].lower()}-operation }}"
    yield operation.get("description", "")
    if parameters := operation.get("parameters"):
        rows = [row("parameter", "in", "meaning"), row("---", "---", "---")]
        rows += [row(f"`{each['name']}`", each["in"], cell(each.get("description", ""))) for each in parameters]
        yield "\n".join(rows)
    if body := operation.get("requestBody"):
        yield f"Body: {_body(body['content'])}"
    content = operation["responses"]["200"]["content"]
    yield f"Response: {_type(content['application/json']['schema']) if 'application/json' in content else 'the file'}"
    if stream := content.get("text/event-stream"):
        events = stream["schema"]
        yield f"Stream: events of {_type(events['contentSchema'])}. {events['description']}"


def _body(content: Mapping[str, Any]) -> str:
    """The body's schema, with the member that asks for a stream where there is one, or with that of a form's file."""
    ((kind, media),) = content.items()
    schema = media["schema"]
    if "allOf" not in schema:
        return _type(schema)
    request, added = schema["allOf"]
    names = ", ".join(f"`{name}`" for name in added["properties"])
    return f"{_type(request)}, and {names}" + (" for a stream" if kind == "application/json" else f", as {kind}")


def _schema(name: str, schema: _Schema) -> Iterator[str]:
    yield f"### {name} {{ #{name.lower()} }}"
    yield schema.get("description", "")
    members = _members(schema)
    if others := [_type(each) for each in _alternatives(schema) if "properties" not in each]:
        yield f"Type: {', '.join(others)}{', or an object' if members else ''}"
    supported = {key: value for key, value in members.items() if not _is_refused(value)}
    if supported:
        rows = [row("member", "type", "meaning"), row("---", "---", "---")]
        yield "\n".join([*rows, *(_member(key, value, schema) for key, value in supported.items())])
    if refused := [f"`{key}`" for key in members if key not in supported]:
        yield f"Accepted only with the value that changes nothing, else refused: {', '.join(refused)}."


def _alternatives(schema: _Schema) -> list[_Schema]:
    """The forms that a value may have."""
    return schema.get("anyOf", [schema])


def _members(schema: _Schema) -> dict[str, _Schema]:
    """The members of a value that is an object, over all of its forms. A `type` that tells forms apart has the values
    of all of them.
    """
    members: dict[str, _Schema] = {}
    for form in _alternatives(schema):
        for each in (form, *form.get("oneOf", ())):
            for name, member in each.get("properties", {}).items():
                if "const" in member and name in members:
                    members[name] = {"enum": [*members[name]["enum"], member["const"]]}
                else:
                    members[name] = {"enum": [member["const"]]} if "const" in member else member
    return members


def _is_refused(member: _Schema) -> bool:
    return member.get("description", "").startswith("Not supported.")


def _member(name: str, member: _Schema, schema: _Schema) -> str:
    text = member.get("description", "")
    if "properties" in member:
        text += " Members: " + ", ".join(f"`{name}.{each}`" for each in member["properties"]) + "."
    if name in schema.get("required", ()):
        text = f"Required. {text}"
    return row(f"`{name}`", cell(_type(member)), cell(text))


def _type(schema: _Schema) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "items" in schema:
        return f"array of {_type(schema['items'])}"
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)
