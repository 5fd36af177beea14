"""Turns JSON Schemas into schemas that can be enforced in full, and names what was left out, with its path.

llguidance refuses most of what it cannot enforce, without a path. It misses some of it, and some schemas take it
seconds or crash the process; this module finds those. A keyword that cannot be enforced is dropped alone, so that
every value that is valid under the client's schema is valid under the enforced one. What is invalid, too large or too
deep is refused.
"""

import copy
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from glimpse.engine.checkpoint.grammar.alternatives import exclude_each_other
from glimpse.engine.checkpoint.grammar.lark import GrammarError, check_backslashes
from glimpse.engine.checkpoint.grammar.references import escape, resolve

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
_COMBINING = ("anyOf", "oneOf", "allOf", "$ref")
_ENFORCED_MAPS = ("properties", "patternProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OTHERS = ("type", "const", "enum", "$ref", "required", "pattern", "format")
_SIZES = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_ABOUT = ("title", "description", "default", "examples", "readOnly", "writeOnly", "$comment")
_ANNOTATIONS = frozenset(
    (*_ABOUT, "$anchor", "$defs", "definitions", "$schema", "$id", "id", "contentMediaType", "contentEncoding")
)
"""Keywords that llguidance knows to constrain nothing."""
_KNOWN = _ANNOTATIONS.union(_ENFORCED_INSIDE, _ENFORCED_LISTS, _ENFORCED_MAPS, _BOUNDS, _OTHERS, _SIZES)
CONSTRAINING = _KNOWN - _ANNOTATIONS
_IN_PLACE = frozenset(("$ref", "allOf", "anyOf", "oneOf", "const", "enum"))
"""Keywords that llguidance intersects with those beside them."""
_ANY: tuple[object, ...] = (True, {})
_NOT_ENFORCED: Mapping[str, tuple[object, ...]] = {
    "not": (False,),
    "if": (),
    "then": _ANY,
    "else": _ANY,
    "contains": (),
    "minContains": (),
    "maxContains": (),
    "uniqueItems": (False,),
    "propertyNames": (*_ANY, {"type": "string"}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "unevaluatedItems": _ANY,
    "unevaluatedProperties": _ANY,
    "$dynamicRef": (),
    "$recursiveRef": (),
    "x-guidance": (),
}
"""Keyword → its values that constrain nothing."""
_NAMES = ("$dynamicAnchor", "$recursiveAnchor")
"""Keywords that constrain nothing and that llguidance refuses."""
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # control characters without a short escape in JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcedSchema:
    """A schema that allows at least what the client's schema allows, and can be enforced in full."""

    schema: Mapping[str, Any]
    unenforced: tuple[str, ...] = ()
    """Keywords of the client's schema that are not enforced: JSON pointers such as `#/properties/path/format`."""


def enforceable(schema: object) -> EnforcedSchema:
    """Drops the keywords that cannot be enforced, as far as they can be told without llguidance.

    Raises:
        GrammarError: the schema is invalid, too large or too deep; with the path, such as `#/properties/name`.
    """
    if not isinstance(schema, dict):
        raise GrammarError("#: expected a JSON object as schema")
    editor = SchemaEditor(copy.deepcopy(schema))
    _Enforcer(editor).run()
    return editor.result()


class SchemaEditor:
    """Drops keywords of a schema, which it changes, and remembers them."""

    def __init__(self, root: dict[str, Any], unenforced: tuple[str, ...] = ()) -> None:
        self.root = root
        self._unenforced = dict.fromkeys(unenforced)

    def tell(self, path: str, keyword: str) -> None:
        self._unenforced[f"{path}/{escape(keyword)}"] = None

    def drop(self, schema: dict[str, Any], path: str, keyword: str) -> None:
        if keyword in schema:
            del schema[keyword]
            self.tell(path, keyword)

    def drop_names(self, schema: dict[str, Any], path: str) -> None:
        """Drops patterns of names, and with them what is said of names that match none of them."""
        self.drop(schema, path, "patternProperties")
        if schema.get("additionalProperties", True) not in _ANY:
            self.drop(schema, path, "additionalProperties")

    def result(self) -> EnforcedSchema:
        return EnforcedSchema(schema=self.root, unenforced=tuple(self._unenforced))

    def walk(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the subschemas with their paths, in llguidance's order; those that are referred to once for each
        reference. What the caller drops from a subschema is not visited.

        Raises:
            GrammarError: the schema is too deep, or a reference leads nowhere.
        """
        followed = set[str]()
        waiting: list[tuple[str, object, int]] = [("#", self.root, 0)]
        while waiting:
            path, schema, depth = waiting.pop()
            if depth > MAX_DEPTH:
                raise GrammarError(f"{path}: schemas are nested more than {MAX_DEPTH} levels deep, references included")
            if not isinstance(schema, dict):
                continue  # true or false; llguidance refuses anything else
            yield path, schema
            inner = [(f"{path}/{below}", each, depth + 1) for below, each in _inner_schemas(schema)]
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                inner.append((reference, resolve(self.root, reference, path), depth + 1))
            waiting += reversed(inner)


class _Enforcer:
    """Visits a schema and drops what cannot be enforced."""

    def __init__(self, editor: SchemaEditor) -> None:
        self._editor = editor
        self._num_properties = 0
        self._num_patterns = 0
        self._multiple = 1
        self._alternatives = set[int]()

    def run(self) -> None:
        for path, schema in self._editor.walk():
            self._drop_keywords(schema, path)
            self._check_id(schema, path)
            self._count(schema, path)
            self._drop_multiple(schema, path)
            self._drop_values(schema, path)
            self._drop_strings(schema, path)
            self._drop_counts(schema, path)
            self._tell_alternatives(schema, path)

    def _drop_keywords(self, schema: dict[str, Any], path: str) -> None:
        for keyword in [each for each in schema if each in _NOT_ENFORCED or each in _NAMES]:
            if keyword in _NAMES or schema[keyword] in _NOT_ENFORCED[keyword]:
                del schema[keyword]
            else:
                self._editor.drop(schema, path, keyword)
        if not _IN_PLACE.isdisjoint(schema):
            # llguidance would resolve references for the sake of such a neighbour, and fail where they are circular.
            for keyword in set(schema) - _KNOWN:
                if path != "#" or not isinstance(schema[keyword], dict):  # where references may lead
                    del schema[keyword]
        if "prefixItems" in schema and "additionalItems" in schema:
            self._editor.drop(schema, path, "additionalItems")
        if "prefixItems" in schema and isinstance(schema.get("items"), list):
            self._editor.drop(schema, path, "prefixItems")  # drafts differ in which of the two they know
            self._editor.drop(schema, path, "items")

    def _check_id(self, schema: Mapping[str, Any], path: str) -> None:
        if "$id" in schema and path != "#" and _refers(schema):
            raise GrammarError(f"{path}: '$id' of a schema with '$ref' inside is only supported at the root")

    def _count(self, schema: Mapping[str, Any], path: str) -> None:
        self._num_properties += _size(schema.get("properties")) + _size(schema.get("required"))
        if self._num_properties > 2 * MAX_PROPERTIES:
            raise GrammarError(f"{path}: the schema names more than {MAX_PROPERTIES} properties")
        self._num_patterns += _size(schema.get("patternProperties"))
        if self._num_patterns > MAX_PATTERN_PROPERTIES:
            raise GrammarError(f"{path}: the schema has more than {MAX_PATTERN_PROPERTIES} 'patternProperties'")

    def _drop_multiple(self, schema: dict[str, Any], path: str) -> None:
        multiple = schema.get("multipleOf")
        if isinstance(multiple, int | float) and math.isfinite(multiple):
            common = math.lcm(self._multiple, _digits(multiple))
            if common > MAX_MULTIPLE:
                self._editor.drop(schema, path, "multipleOf")
            else:
                self._multiple = common

    def _drop_values(self, schema: dict[str, Any], path: str) -> None:
        for keyword in (*_BOUNDS, "const", "enum"):
            if any(map(_is_inexact, _scalars(schema.get(keyword)))):
                self._editor.drop(schema, path, keyword)

    def _drop_strings(self, schema: dict[str, Any], path: str) -> None:
        form, types = schema.get("format"), schema.get("type", "string")
        is_string = "string" in types if isinstance(types, list) else types == "string"
        if is_string and isinstance(form, str) and form not in FORMATS:
            self._editor.drop(schema, path, "format")
        if _is_ambiguous(schema.get("pattern")):
            self._editor.drop(schema, path, "pattern")
        names = schema.get("patternProperties")
        if isinstance(names, dict) and (any(map(_is_ambiguous, names)) or _closes_combined(schema)):
            self._editor.drop_names(schema, path)

    def _drop_counts(self, schema: dict[str, Any], path: str) -> None:
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if not isinstance(least, int | float) or not isinstance(most, int | float | None):
            return  # which llguidance refuses
        least -= _size(schema.get("required"))
        if _num_optional(schema) and (least > 0 or most is not None):
            most = 1 if most is None else most - _size(schema.get("required"))
            is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
            if not is_closed or least > 1 or most != 1:
                if least > 0:
                    self._editor.drop(schema, path, "minProperties")
                self._editor.drop(schema, path, "maxProperties")
        elif least > 1:  # a generated object may repeat a name, so names that are not listed cannot be counted
            self._editor.drop(schema, path, "minProperties")

    def _tell_alternatives(self, schema: Mapping[str, Any], path: str) -> None:
        """llguidance treats `oneOf` as `anyOf`, which is the same where no two alternatives hold at once."""
        alternatives = schema.get("oneOf")
        if isinstance(alternatives, list) and id(alternatives) not in self._alternatives:
            self._alternatives.add(id(alternatives))
            if not exclude_each_other(alternatives, self._editor.root):
                self._editor.tell(path, "oneOf")


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the direct subschemas of a schema, each with its relative path."""
    for keyword, value in schema.items():
        if keyword in _ENFORCED_MAPS and isinstance(value, dict):
            yield from ((f"{keyword}/{escape(name)}", inner) for name, inner in value.items())
        elif keyword in _ENFORCED_LISTS and isinstance(value, list):
            yield from ((f"{keyword}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _ENFORCED_INSIDE:
            yield keyword, value


def _refers(value: object) -> bool:
    """Tests whether a schema has a reference inside."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _is_inexact(value: object) -> bool:
    """Tests for a number that is not exact in all JSON parsers, or a text that cannot be generated."""
    if isinstance(value, int | float):
        return not abs(value) <= MAX_WHOLE_NUMBER
    return isinstance(value, str) and _UNWRITABLE.search(value) is not None


def _closes_combined(schema: Mapping[str, Any]) -> bool:
    """Tests for a constraint of other names beside alternatives, with which llguidance forgets the patterns."""
    return schema.get("additionalProperties", True) not in _ANY and any(name in schema for name in _COMBINING)


def _is_ambiguous(pattern: object) -> bool:
    """Tests for `[`, `&&`, `--` or `~~` in a character class: operators to some engines, characters in ECMA 262."""
    if not isinstance(pattern, str):
        return False
    check_backslashes(pattern)
    for inside in re.findall(r"\\.|\[\^?\]?((?:\\.|[^\]\\])*)\]?", pattern, re.DOTALL):
        if re.search(r"(?<!\\)\[|&&|--|~~", inside):
            return True
    return False


def _num_optional(schema: Mapping[str, Any]) -> int:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return 0
    return sum(name not in required for name in properties) if isinstance(required, list) else len(properties)


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
