"""References inside a JSON Schema, the JSON pointers that they are made of, and keywords as far as they are valid."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from glimpse.engine.checkpoint.grammar.lark import GrammarError


def resolve(root: Mapping[str, Any], reference: str, path: str) -> object:
    """Returns the target of a reference.

    Raises:
        GrammarError: it does not lead to a place in the schema; `path` is where the reference is.
    """
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


def required_names(schema: Mapping[str, Any]) -> list[str]:
    """Returns the names that an object must have."""
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Returns the values that a schema lists; None if it does not."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def escape(name: str) -> str:
    """Returns a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
