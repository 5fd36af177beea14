"""Tells whether the alternatives of `oneOf` in a JSON Schema exclude each other, so that `anyOf` means the same."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from glimpse.engine.checkpoint.grammar.lark import GrammarError
from glimpse.engine.checkpoint.grammar.references import listed_values, required_names, resolve

_KINDS = frozenset(("null", "boolean", "number", "string", "array", "object"))
_KIND_OF = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
_MAX_PAIRS = 5000
"""Pairs of alternatives that are compared; more take too long."""
_MAX_DEPTH = 4
"""References in a row, and properties in one another, that are followed."""

_Schema: TypeAlias = Mapping[str, Any]
_Scalar: TypeAlias = tuple[str, object]


def exclude_each_other(alternatives: Sequence[object], root: _Schema) -> bool:
    """Returns True if no value matches two of the alternatives; False if one does, or if that is not easily seen.

    The schemas may be invalid.
    """
    schemas = [_followed(each, root) for each in alternatives]
    values = [_values(each) for each in schemas]
    if all(each is not None for each in values):
        distinct = set[_Scalar]().union(*(each or () for each in values))
        return len(distinct) == sum(len(each or ()) for each in values)
    if len(schemas) * (len(schemas) - 1) > 2 * _MAX_PAIRS:
        return False
    return all(_exclude(one, other, root, _MAX_DEPTH) for one, other in combinations(schemas, 2))


def _exclude(one: _Schema | bool, other: _Schema | bool, root: _Schema, depth: int) -> bool:
    if one is False or other is False:
        return True
    shared = _kinds(one) & _kinds(other)
    values, others = _values(one), _values(other)
    if not shared or (values is not None and others is not None and values.isdisjoint(others)):
        return True
    if shared - {"object"} or not isinstance(one, Mapping) or not isinstance(other, Mapping) or not depth:
        return False
    return any(
        _exclude(_property(one, name, root), _property(other, name, root), root, depth - 1)
        for name in {*required_names(one), *required_names(other)}
    )


def _followed(schema: object, root: _Schema) -> _Schema | bool:
    """Returns what a schema refers to. True: it may allow anything."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema if isinstance(schema, dict | bool) else True
        try:
            schema = resolve(root, str(schema["$ref"]), "#")
        except GrammarError:
            return True
    return True


def _property(schema: _Schema, name: str, root: _Schema) -> _Schema | bool:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return _followed(properties[name], root)
    return schema.get("additionalProperties") is not False or bool(schema.get("patternProperties"))


def _kinds(schema: _Schema | bool) -> frozenset[str]:
    """Returns the types that a schema allows, integers as numbers."""
    if not isinstance(schema, Mapping):
        return _KINDS
    if (values := _values(schema)) is not None:
        return frozenset(kind for kind, _ in values)
    types = schema.get("type", [*_KINDS])
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not all(isinstance(each, str) for each in types):
        return _KINDS
    return frozenset("number" if each == "integer" else each for each in types)


def _values(schema: _Schema | bool) -> frozenset[_Scalar] | None:
    """Returns the values that a schema lists; None if it does not, or if they are not scalars."""
    if not isinstance(schema, Mapping):
        return None
    values = listed_values(schema)
    if values is None or any(isinstance(each, dict | list) for each in values):
        return None
    return frozenset((_KIND_OF[type(each)], each) for each in values)
