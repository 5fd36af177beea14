"""Parameters of tools whose calls are XML: the JSON Schema of each, and what the text of a value means as JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glimpse.engine.checkpoint.grammar.json_schema import CONSTRAINING
from glimpse.engine.checkpoint.grammar.lark import GrammarError
from glimpse.engine.checkpoint.grammar.references import escape, listed_values, required_names, resolve
from glimpse.engine.checkpoint.text.conversation import ToolDefinition

_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling of JSON's words: chat templates print values of earlier calls like this."""
_UNWRITABLE = re.compile(r"[<>\n]")
"""What the name of a parameter cannot contain in this format."""
_MAX_DEPTH = 8
"""References and alternatives that are followed to find the types of a value."""
_OF_TEXTS = frozenset(("enum", "const", "minLength", "maxLength"))
"""Keywords of a string's schema that a grammar of its text enforces."""
_NOT_LISTED = frozenset(
    ("$ref", "anyOf", "oneOf", "allOf", "patternProperties", "minProperties", "maxProperties", "dependentRequired")
)
"""Keywords of a tool's schema that constrain more than each parameter alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlParameter:
    """A parameter of a tool."""

    name: str
    schema: Mapping[str, Any]
    """JSON Schema of the value, with the definitions of the whole."""
    is_required: bool

    @property
    def is_text(self) -> bool:
        """The value is a string, whatever its text."""
        return _kinds(self.schema) == {"string"}

    @property
    def may_be_text(self) -> bool:
        """The value is the text itself if that is no JSON of another type that the schema allows."""
        kinds = _kinds(self.schema)
        return not kinds or "string" in kinds

    def to_json(self, text: str) -> str:
        """Returns the JSON that the text of a value stands for: of a type that the schema allows, if possible."""
        if self.is_text:
            return json.dumps(text, ensure_ascii=False)
        stripped = text.strip()
        stripped = _PYTHON_WORDS.get(stripped, stripped)
        kinds = _kinds(self.schema)
        kind = _kind_of(stripped)
        fits = kind in kinds or (kind == "integer" and "number" in kinds) or (not self.may_be_text and kind is not None)
        return stripped if fits else json.dumps(text, ensure_ascii=False)


BARE = XmlParameter(name="", schema={"type": ["integer", "number", "boolean", "null", "string"]}, is_required=False)
"""A value without quotes: a text if it is nothing else."""


def xml_parameters(tool: ToolDefinition) -> list[XmlParameter] | None:
    """Returns the parameters of a tool, in the order of its schema; None if its schema does not list them.

    The schema may be invalid; what is invalid constrains nothing.
    """
    schema = json.loads(tool.parameters)
    properties = schema.get("properties", {} if schema.get("additionalProperties") is False else None)
    if not isinstance(properties, dict):
        return None
    required = required_names(schema)
    names = [*properties, *(name for name in required if name not in properties)]
    if any(_UNWRITABLE.search(name) or not name for name in names):
        return None
    definitions = _definitions(schema)
    return [
        XmlParameter(
            name=name, schema=_with_definitions(properties.get(name), definitions), is_required=name in required
        )
        for name in names
    ]


def unenforced_in_xml(tool: ToolDefinition) -> tuple[str, ...]:
    """Returns the keywords of a tool's schema that no grammar of the format enforces, as JSON pointers."""
    texts = (
        f"#/properties/{escape(each.name)}/{keyword}"
        for each in xml_parameters(tool) or ()
        if each.may_be_text
        for keyword in _unenforced_in_text(each)
    )
    return (*unenforced_in_parameters(tool), *texts)


def unenforced_in_parameters(tool: ToolDefinition) -> tuple[str, ...]:
    """Returns the keywords of a tool's schema that are not enforced where each parameter is checked by itself."""
    schema, is_listed = json.loads(tool.parameters), xml_parameters(tool) is not None
    keywords = _NOT_LISTED if is_listed else CONSTRAINING - {"type"}
    return tuple(f"#/{escape(keyword)}" for keyword in schema if keyword in keywords)


def _unenforced_in_text(parameter: XmlParameter) -> list[str]:
    enforced = _OF_TEXTS | {"type"} if parameter.is_text else {"type"}
    alternatives = parameter.schema.get("anyOf")
    if isinstance(alternatives, list) and {"type": "string"} in map(_constraints, alternatives):
        enforced |= {"anyOf"}  # which any text satisfies
    return [keyword for keyword in _constraints(parameter.schema) if keyword not in enforced]


def _constraints(schema: object) -> dict[str, Any]:
    return {name: schema[name] for name in schema if name in CONSTRAINING} if isinstance(schema, Mapping) else {}


def _with_definitions(schema: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**definitions, **schema} if isinstance(schema, dict) else {}


def _kinds(schema: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Returns the JSON types that a schema allows; empty: unknown."""
    if (values := listed_values(schema)) is not None:
        return {_KINDS.get(type(value), "null") for value in values}
    types = schema.get("type")
    if isinstance(types, str | list):
        return {each for each in ([types] if isinstance(types, str) else types) if isinstance(each, str)}
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list) and depth < _MAX_DEPTH:
        kinds = [_kinds(_with_definitions(each, _definitions(schema)), depth + 1) for each in alternatives]
        return set[str]().union(*kinds) if all(kinds) else set()
    if isinstance(schema.get("$ref"), str) and depth < _MAX_DEPTH:
        return _kinds(_resolve(schema, schema["$ref"]), depth + 1)
    return set()


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def _resolve(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
    """Returns the definition that a reference names; empty if there is none."""
    try:
        found = resolve(schema, reference, "#")
    except GrammarError:
        return {}
    return _with_definitions(found, _definitions(schema))


def _kind_of(text: str) -> str | None:
    """Returns the type of a JSON text; None if it is not JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return _KINDS.get(type(value), "null")


def _refuse(constant: str) -> None:
    raise ValueError(constant)
