"""Writes grammar rules for tool calls whose strings have a tag for a quote, in llguidance's dialect of Lark.

Numbers, booleans and null are JSON. Members are in the order of their names, regardless of case, as chat templates show
them to the model. What of a schema is invalid constrains nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from glimpse.engine.checkpoint.grammar.json_schema import CONSTRAINING
from glimpse.engine.checkpoint.grammar.references import escape, listed_values, required_names, resolve
from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.quoted_parser import CALL
from glimpse.engine.checkpoint.text.tools.xml_call_grammar import free_text, length_of, ordered_members

_SCALARS = ("integer", "number", "boolean", "null")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ENFORCED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_SCALARS, _BOUNDS),
    "string": ("minLength", "maxLength"),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}
"""Keywords that the rules of a type enforce."""
_NOT_BARE = re.compile(r'[:,{}\[\]<>"\n]|^\s|\s$|^$')
"""Names that cannot be without quotes."""
_ANY = """\
any: any_text | any_scalar | any_list | any_object
any_scalar: %json {"type": ["number", "boolean", "null"]}
any_list: "[" (any ("," any)*)? "]"
any_object: "{" (any_member ("," any_member)*)? "}"
any_member: ANY_NAME ":" any
ANY_NAME: /[^:,{}\\[\\]<>"\\s]{1,64}/
"""


class QuotedCallWriter:
    """Writes the rules of the calls of some tools, and lists what of their schemas these do not enforce."""

    def __init__(self, quote: str, literal: Callable[[str], str] = json.dumps, *, is_token: bool = False) -> None:
        """
        Args:
            quote: the tag on both sides of strings.
            literal: quotes a text for Lark.
            is_token: the tag is a special token.
        """
        self.unenforced: list[str] = []
        """JSON pointers of keywords."""
        self._quote = quote
        self._literal = literal
        self._is_token = is_token
        self._rules: list[str] = []
        self._texts: dict[str, str] = {}
        """Quantifier of a length → rule of such strings."""
        self._root: Mapping[str, Any] = {}
        self._references: dict[str, str] = {}
        """Reference in `_root` → rule of its values."""

    def rules(self) -> Iterator[str]:
        """Yields the rules written so far, and those that they share."""
        if any("any" in rule.lower() for rule in self._rules):
            self._rules.append(f"any_text: {self._text('')}")
            yield from _ANY.splitlines()
        yield from self._rules

    def add_call(self, index: int, tool: ToolDefinition) -> None:
        """Writes the rule `call_INDEX`: a call of the tool."""
        self._root, self._references = json.loads(tool.parameters), {}
        arguments = self._object(self._root, "#")
        self._tell(self._root, "#", ("type", *_ENFORCED["object"]))
        self._rules.append(f"call_{index}: {self._literal(f'{CALL}{tool.name}')} {arguments}")

    def _add(self, rule: str) -> str:
        """Writes a rule, and returns its name."""
        name = f"value_{len(self._rules)}"
        self._rules.append(f"{name}: {rule}")
        return name

    def _value(self, schema: Any, path: str) -> str:
        """Writes the rules of values that match a schema, and returns the expression of one."""
        if not isinstance(schema, Mapping):
            return "any"
        if isinstance(reference := schema.get("$ref"), str):
            self._tell(schema, path, ("$ref",))
            if reference not in self._references:
                self._references[reference] = name = f"reference_{len(self._rules)}"
                self._rules.append("")  # keeps names unique while the rule is not known
                place = len(self._rules) - 1
                self._rules[place] = f"{name}: {self._value(resolve(self._root, reference, path), reference)}"
            return self._references[reference]
        if values := listed_values(schema):
            self._tell(schema, path, ("type", "enum", "const"))
            return f"({' | '.join(self._literal(self._written(each)) for each in values)})"
        for keyword in ("anyOf", "oneOf"):
            if (alternatives := schema.get(keyword)) and isinstance(alternatives, list):
                self._tell(schema, path, ("type", keyword))
                rules = (self._value(each, f"{path}/{keyword}/{at}") for at, each in enumerate(alternatives))
                return f"({' | '.join(dict.fromkeys(rules))})"
        return self._of_types(schema, path)

    def _of_types(self, schema: Mapping[str, Any], path: str) -> str:
        types = schema.get("type") or ["object" if "properties" in schema else "array" if "items" in schema else ""]
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or any(not isinstance(each, str) or each not in _ENFORCED for each in types):
            self._tell(schema, path, ())
            return "any"
        self._tell(schema, path, ("type", *(keyword for each in types for keyword in _ENFORCED[each])))
        rules = list[str]()
        if scalars := [each for each in types if each in _SCALARS]:
            bounds = {keyword: schema[keyword] for keyword in _BOUNDS if keyword in schema}
            rules.append(self._add(f"%json {json.dumps({'type': scalars, **bounds})}"))
        if "string" in types:
            rules.append(self._text(length_of(schema)))
        if "array" in types:
            rules.append(self._list(schema, path))
        if "object" in types:
            rules.append(self._object(schema, path))
        return rules[0] if len(rules) == 1 else f"({' | '.join(rules)})"

    def _text(self, length: str) -> str:
        """Returns the expression of a string with a quantifier for its length; empty: of any."""
        if length not in self._texts:
            text, quote = free_text(length, self._quote), self._literal(self._quote)
            name = f"TEXT_{len(self._texts)}" if self._is_token else f"text_{len(self._texts)}"
            self._texts[length] = self._add(f"{quote} {name} {quote}" if self._is_token else f"{quote} {name}")
            self._rules.append(f"{name}: {text}" if self._is_token else f"{name}[lazy]: {text} {quote}")
        return self._texts[length]

    def _list(self, schema: Mapping[str, Any], path: str) -> str:
        item = self._value(schema.get("items"), f"{path}/items")
        least, most = (schema.get(name) if type(schema.get(name)) is int else None for name in ("minItems", "maxItems"))
        if most == 0:
            return self._add('"[" "]"')
        further = f'("," {item}){{{(least or 1) - 1},{"" if most is None else most - 1}}}'
        items = item if most == 1 else f"{item} {further}"
        return self._add(f'"[" {items} "]"' if least else f'"[" ({items})? "]"')

    def _object(self, schema: Mapping[str, Any], path: str) -> str:
        properties, required = schema.get("properties"), required_names(schema)
        properties = properties if isinstance(properties, dict) else {}
        additional = schema.get("additionalProperties")
        names = sorted({**properties, **dict.fromkeys(required)}, key=str.lower)
        if not names and additional is not False:
            value = self._value(additional, f"{path}/additionalProperties")
            if value == "any":
                return "any_object"
            member = f'ANY_NAME ":" {value}'
            return self._add(f'"{{" ({member} ("," {member})*)? "}}"')
        values = (self._value(properties.get(name), f"{path}/properties/{escape(name)}") for name in names)
        members = [(f"{self._name(name)} {value}", name in required) for name, value in zip(names, values, strict=True)]
        body = ordered_members(members, '","', self._add)
        return self._add(f'"{{" {body} "}}"')

    def _name(self, name: str) -> str:
        return self._literal(f"{self._quoted(name) if _NOT_BARE.search(name) else name}:")

    def _quoted(self, text: str) -> str:
        return f"{self._quote}{text}{self._quote}"

    def _written(self, value: Any) -> str:
        """Returns a value as the model writes it."""
        match value:
            case str():
                return self._quoted(value)
            case list():
                return f"[{','.join(map(self._written, value))}]"
            case dict():
                members = sorted(value.items(), key=lambda each: each[0].lower())
                return f"{{{','.join(f'{name}:{self._written(each)}' for name, each in members)}}}"
            case _:
                return json.dumps(value)

    def _tell(self, schema: Mapping[str, Any], path: str, enforced: Sequence[str]) -> None:
        keywords = (keyword for keyword in schema if keyword in CONSTRAINING and keyword not in enforced)
        self.unenforced += (f"{path}/{escape(keyword)}" for keyword in keywords)


def unenforced_in_quoted(tool: ToolDefinition) -> tuple[str, ...]:
    """Returns the keywords of a tool's schema that no grammar of the format enforces, as JSON pointers."""
    writer = QuotedCallWriter("")
    writer.add_call(0, tool)
    return tuple(writer.unenforced)
