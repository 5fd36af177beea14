"""What of JSON Schema is enforced, and how large a schema may be: what is beyond that is refused by name and place.

llguidance refuses most of what it cannot enforce, without a place. It does not refuse all of it, and some schemas take
it seconds or the process; those are found here. Knows no tokens.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from glimpse.engine.grammar.lark import GrammarError, check_backslashes

MAX_DEPTH = 100
"""Schemas inside schemas, through references too. A thread's stack holds a thousand."""
MAX_PROPERTIES = 1000
"""Named in the whole schema; compiling takes time that grows with their square."""
MAX_PATTERN_PROPERTIES = 16
"""In the whole schema; each is compared with each."""
MAX_MULTIPLE = 10_000
"""The least common multiple of all `multipleOf`, decimal points aside. A lexer with as many states is made."""
MAX_WHOLE_NUMBER = 2**53
"""Larger ones are not the same number to everyone who reads them."""

FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

_ENFORCED_INSIDE = ("items", "additionalItems", "additionalProperties")
_ENFORCED_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_ENFORCED_MAPS = ("properties", "patternProperties")
_NOT_ENFORCED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "x-guidance",
    }
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that JSON has no short escape for


def check_schema(schema: object) -> None:
    """Refuses a schema that cannot be enforced, as far as llguidance would not.

    Raises:
        GrammarError: says where, as `#/properties/name`, and why.
    """
    if not isinstance(schema, dict):
        raise GrammarError("#: a schema is a JSON object")
    _Check(schema).visit(schema, "#", depth=0)


class _Check:
    """One pass over a schema, in the order in which llguidance goes, each reference followed once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._followed: set[str] = set()
        self._num_properties = 0
        self._num_patterns = 0
        self._multiple = 1

    def visit(self, schema: object, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise GrammarError(f"{path}: schemas are nested more than {MAX_DEPTH} deep, references included")
        if not isinstance(schema, dict):
            return  # true and false; whatever else it may be, llguidance says so
        self._check_keywords(schema, path)
        self._count(schema, path)
        _check_values(schema, path)
        _check_strings(schema, path)
        _check_objects(schema, path)
        for below, inner in _inner_schemas(schema):
            self.visit(inner, f"{path}/{below}", depth + 1)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._followed:
            self._followed.add(reference)
            self.visit(_resolve(self._root, reference, path), reference, depth + 1)

    def _check_keywords(self, schema: Mapping[str, Any], path: str) -> None:
        for keyword in schema:
            if keyword in _NOT_ENFORCED:
                raise GrammarError(f"{path}: {keyword!r} cannot be enforced")
        if "$id" in schema and path != "#":
            raise GrammarError(f"{path}: '$id' is only supported at the root")
        if "prefixItems" in schema and ("additionalItems" in schema or isinstance(schema.get("items"), list)):
            raise GrammarError(
                f"{path}: 'prefixItems' cannot be enforced beside 'additionalItems' or a list of 'items'"
            )

    def _count(self, schema: Mapping[str, Any], path: str) -> None:
        self._num_properties += _size(schema.get("properties")) + _size(schema.get("required"))
        if self._num_properties > 2 * MAX_PROPERTIES:
            raise GrammarError(f"{path}: the schema names more than {MAX_PROPERTIES} properties")
        self._num_patterns += _size(schema.get("patternProperties"))
        if self._num_patterns > MAX_PATTERN_PROPERTIES:
            raise GrammarError(f"{path}: the schema has more than {MAX_PATTERN_PROPERTIES} 'patternProperties'")
        multiple = schema.get("multipleOf")
        if isinstance(multiple, int | float) and math.isfinite(multiple):
            self._multiple = math.lcm(self._multiple, _digits(multiple))
            if self._multiple > MAX_MULTIPLE:
                raise GrammarError(f"{path}: 'multipleOf' cannot be enforced: the multiples are over {MAX_MULTIPLE}")


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, each with its path below it."""
    for keyword, value in schema.items():
        if keyword in _ENFORCED_MAPS and isinstance(value, dict):
            yield from ((f"{keyword}/{name}", inner) for name, inner in value.items())
        elif keyword in _ENFORCED_LISTS and isinstance(value, list):
            yield from ((f"{keyword}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _ENFORCED_INSIDE:
            yield keyword, value


def _resolve(root: Mapping[str, Any], reference: str, path: str) -> object:
    """What a reference refers to."""
    if reference != "#" and not reference.startswith("#/"):
        raise GrammarError(f"{path}: '$ref' to {reference!r}: only references that begin with #/ can be followed")
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif name or reference != "#/":
            raise GrammarError(f"{path}: '$ref' to {reference!r}, which is not in the schema")
    return found


def _check_values(schema: Mapping[str, Any], path: str) -> None:
    for keyword in (*_BOUNDS, "const", "enum"):
        for value in _scalars(schema.get(keyword)):
            if isinstance(value, int | float) and not abs(value) <= MAX_WHOLE_NUMBER:
                raise GrammarError(f"{path}: {keyword!r} has a number beyond 2^53, which is not exact")
            if isinstance(value, str) and _UNWRITABLE.search(value):
                raise GrammarError(f"{path}: {keyword!r} has a control character, which is not generated")


def _check_strings(schema: Mapping[str, Any], path: str) -> None:
    types = schema.get("type", "string")
    is_string = "string" in types if isinstance(types, list) else types == "string"
    if is_string and "format" in schema and schema["format"] not in FORMATS:
        raise GrammarError(f"{path}: the format {schema['format']!r} cannot be enforced; {', '.join(FORMATS)} can")
    patterns = [schema.get("pattern"), *_keys(schema.get("patternProperties"))]
    for pattern in patterns:
        if not isinstance(pattern, str):
            continue
        check_backslashes(pattern)
        if _has_class_operator(pattern):
            raise GrammarError(f"{path}: the pattern {pattern!r} has a character class that is read in two ways")


def _check_objects(schema: Mapping[str, Any], path: str) -> None:
    """A name may be repeated, so that two properties are not known to be two."""
    minimum = schema.get("minProperties", 0)
    if isinstance(minimum, int | float) and minimum > _size(schema.get("required")) + 1:
        raise GrammarError(f"{path}: 'minProperties' can be enforced up to one more than are 'required'")


def _has_class_operator(pattern: str) -> bool:
    """Has `[`, `&&`, `--` or `~~` in a character class: operators to some, characters to ECMA 262."""
    for inside in re.findall(r"\\.|\[\^?\]?((?:\\.|[^\]\\])*)\]?", pattern, re.DOTALL):
        if re.search(r"(?<!\\)\[|&&|--|~~", inside):
            return True
    return False


def _scalars(value: object) -> Iterator[object]:
    """All that is in a JSON value, names of members aside."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    else:
        yield value


def _digits(number: float) -> int:
    """The digits of a number as a whole one: of 0.25, 25."""
    fraction = Fraction(str(abs(number)))
    while fraction.denominator > 1:
        fraction *= 10
    return max(1, int(fraction))


def _size(value: object) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _keys(value: object) -> Sequence[Any]:
    return list(value) if isinstance(value, dict) else ()
