"""Drops the keywords of a JSON Schema for which llguidance refuses it, although the schema is valid."""

import copy
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from llguidance import LLMatcher

from glimpse.engine.checkpoint.grammar.json_schema import CONSTRAINING, EnforcedSchema, SchemaEditor

_MAX_TRIED = 16
"""Keywords that are compiled alone, each of which takes a millisecond."""
_REFERRING = ("allOf", "anyOf", "oneOf")

_Places: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Subschemas with their paths."""


def relax(enforced: EnforcedSchema, reason: str) -> EnforcedSchema:
    """Returns a schema without the keywords that llguidance refuses for a reason; the same one if that is no use.

    Keywords that it refuses alone are dropped. If there are none, the trouble is how schemas combine, and all keywords
    that can cause it are dropped.
    """
    for pattern, drop in _REMEDIES.items():
        if re.search(pattern, reason):
            editor = SchemaEditor(copy.deepcopy(dict(enforced.schema)), enforced.unenforced)
            drop(editor, reason)
            return editor.result()
    return enforced


def _drop_patterns(editor: SchemaEditor, _reason: str) -> None:
    places = [(path, schema) for path, schema in editor.walk() if "pattern" in schema or "patternProperties" in schema]
    for path, schema in _refused(places):
        editor.drop(schema, path, "pattern")
        editor.drop_names(schema, path)


def _drop_names(editor: SchemaEditor, _reason: str) -> None:
    for path, schema in _refused([(path, schema) for path, schema in editor.walk() if "patternProperties" in schema]):
        editor.drop_names(schema, path)


def _drop_counts(editor: SchemaEditor, _reason: str) -> None:
    for path, schema in editor.walk():
        editor.drop(schema, path, "minProperties")
        editor.drop(schema, path, "maxProperties")


def _drop_neighbours(editor: SchemaEditor, reason: str) -> None:
    """Drops what stands beside references to a schema that refers to itself, else what combines such references."""
    referring = [(path, schema) for path, schema in editor.walk() if CONSTRAINING & set(schema) > {"$ref"}]
    circular = [(path, schema) for path, schema in referring if "$ref" in schema]
    named = [(path, schema) for path, schema in circular if reason.endswith(str(schema["$ref"]))]
    for path, schema in named or circular:
        for keyword in sorted(CONSTRAINING & set(schema) - {"$ref"}):
            editor.drop(schema, path, keyword)
    if not circular:
        _drop_alternatives(editor)


def _drop_alternatives(editor: SchemaEditor) -> None:
    """Drops what combines references; if nothing does, what combines schemas that have references somewhere."""
    schemas = list(editor.walk())
    are_direct = any(_refers(schema.get(keyword)) for _, schema in schemas for keyword in _REFERRING)
    referring = sorted(path for path, schema in schemas if "$ref" in schema)
    for path, schema in editor.walk():
        for keyword in _REFERRING:
            if _refers(schema.get(keyword)) if are_direct else _has_below(referring, f"{path}/{keyword}/"):
                editor.drop(schema, path, keyword)


_REMEDIES: Mapping[str, Callable[[SchemaEditor, str], None]] = {
    "look-?around|backreference": _drop_patterns,
    "patternPropert": _drop_names,
    "min/maxProperties": _drop_counts,
    "circular references|intersection stack level": _drop_neighbours,
}
"""Pattern of a reason → what drops its causes."""


def _refers(alternatives: object) -> bool:
    """Tests whether one of the alternatives is a reference."""
    return isinstance(alternatives, list) and any(isinstance(each, dict) and "$ref" in each for each in alternatives)


def _has_below(paths: list[str], above: str) -> bool:
    """Tests whether one of the sorted paths begins with another."""
    place = bisect_left(paths, above)
    return place < len(paths) and paths[place].startswith(above)


def _refused(places: _Places) -> _Places:
    """Returns where llguidance refuses patterns alone; all places if it does not, or if there are too many to try."""
    if len(places) > _MAX_TRIED:
        return places
    return [place for place in places if not _compiles(place[1])] or places


def _compiles(schema: Mapping[str, Any]) -> bool:
    alone: dict[str, Any] = {"pattern": schema["pattern"]} if "pattern" in schema else {}
    if isinstance(names := schema.get("patternProperties"), dict):
        alone["patternProperties"] = dict.fromkeys(names, True)
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(alone)))
