"""Refuses JSON Schemas that cannot be enforced or are too large, with the keyword and its path.

llguidance refuses most of what it cannot enforce, without a path. It misses some of it, and some schemas take it
seconds or crash the process; this module finds those.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from glimpse.engine.grammar.lark import GrammarError, check_backslashes

MAX_DEPTH = 100
"""Nesting of schemas, through references too. A thread's stack holds a thousand levels."""
MAX_PROPERTIES = 1000
"""In the whole schema. Compile time grows with the square of their number."""
MAX_PATTERN_PROPERTIES = 16
"""In the whole schema. Each is compared with every other."""
MAX_MULTIPLE = 10_000
"""Limit of the least common multiple of all `multipleOf`, decimal points removed. The lexer has that many states."""
MAX_WHOLE_NUMBER = 2**53
"""Larger integers are not exact in all JSON parsers."""

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
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # control characters without a short escape in JSON


def check_schema(schema: object) -> None:
    """Refuses a schema that cannot be enforced and that llguidance would accept.

    Raises:
        GrammarError: with the path, such as `#/properties/name`, and the reason.
    """
    if not isinstance(schema, dict):
        raise GrammarError("#: expected a JSON object as schema")
    _Checker(schema).visit(schema, "#", depth=0)


class _Checker:
    """Walks a schema in the same order as llguidance and follows each reference once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._followed: set[str] = set()
        self._num_properties = 0
        self._num_patterns = 0
        self._multiple = 1

    def visit(self, schema: object, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise GrammarError(f"{path}: schemas are nested more than {MAX_DEPTH} levels deep, references included")
        if not isinstance(schema, dict):
            return  # true or false; llguidance refuses anything else
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
                f"{path}: 'prefixItems' cannot be enforced together with 'additionalItems' or a list of 'items'"
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
                raise GrammarError(
                    f"{path}: 'multipleOf' cannot be enforced: the least common multiple exceeds {MAX_MULTIPLE}"
                )


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the direct subschemas of a schema, each with its relative path."""
    for keyword, value in schema.items():
        if keyword in _ENFORCED_MAPS and isinstance(value, dict):
            yield from ((f"{keyword}/{name}", inner) for name, inner in value.items())
        elif keyword in _ENFORCED_LISTS and isinstance(value, list):
            yield from ((f"{keyword}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _ENFORCED_INSIDE:
            yield keyword, value


def _resolve(root: Mapping[str, Any], reference: str, path: str) -> object:
    """Returns the target of a reference."""
    if reference != "#" and not reference.startswith("#/"):
        raise GrammarError(f"{path}: '$ref' to {reference!r}: only references that begin with #/ are supported")
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif name or reference != "#/":
            raise GrammarError(f"{path}: '$ref' to {reference!r}, which does not exist in the schema")
    return found


def _check_values(schema: Mapping[str, Any], path: str) -> None:
    for keyword in (*_BOUNDS, "const", "enum"):
        for value in _scalars(schema.get(keyword)):
            if isinstance(value, int | float) and not abs(value) <= MAX_WHOLE_NUMBER:
                raise GrammarError(f"{path}: {keyword!r} has a number beyond 2^53, which is not exact")
            if isinstance(value, str) and _UNWRITABLE.search(value):
                raise GrammarError(f"{path}: {keyword!r} has a control character, which cannot be generated")


def _check_strings(schema: Mapping[str, Any], path: str) -> None:
    types = schema.get("type", "string")
    is_string = "string" in types if isinstance(types, list) else types == "string"
    if is_string and "format" in schema and schema["format"] not in FORMATS:
        raise GrammarError(f"{path}: the format {schema['format']!r} cannot be enforced; use {', '.join(FORMATS)}")
    patterns = [schema.get("pattern"), *_keys(schema.get("patternProperties"))]
    for pattern in patterns:
        if not isinstance(pattern, str):
            continue
        check_backslashes(pattern)
        if _has_class_operator(pattern):
            raise GrammarError(f"{path}: the pattern {pattern!r} has an ambiguous character class ([, &&, -- or ~~)")


def _check_objects(schema: Mapping[str, Any], path: str) -> None:
    """A generated object may repeat a name, so optional properties cannot be counted beyond one."""
    minimum = schema.get("minProperties", 0)
    if isinstance(minimum, int | float) and minimum > _size(schema.get("required")) + 1:
        raise GrammarError(f"{path}: 'minProperties' cannot exceed the number of 'required' properties by more than 1")


def _has_class_operator(pattern: str) -> bool:
    """Tests for `[`, `&&`, `--` or `~~` in a character class: operators to some engines, characters in ECMA 262."""
    for inside in re.findall(r"\\.|\[\^?\]?((?:\\.|[^\]\\])*)\]?", pattern, re.DOTALL):
        if re.search(r"(?<!\\)\[|&&|--|~~", inside):
            return True
    return False


def _scalars(value: object) -> Iterator[object]:
    """Yields all scalars in a JSON value, object keys excluded."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    else:
        yield value


def _digits(number: float) -> int:
    """Returns a number's digits as an integer: 25 for 0.25."""
    fraction = Fraction(str(abs(number)))
    while fraction.denominator > 1:
        fraction *= 10
    return max(1, int(fraction))


def _size(value: object) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _keys(value: object) -> Sequence[Any]:
    return list(value) if isinstance(value, dict) else ()
