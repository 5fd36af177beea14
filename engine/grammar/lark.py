"""Grammars in every notation as one in llguidance's dialect of Lark, and what can be read of a Lark grammar.

A JSON answer is written without escapes that it does not need, so that a key has one spelling, and with little white
space, or a model that is unsure would go on with blanks until its limit. The answer's tokens are the model's own choice
also where only one text is left: llguidance could say which they are, but takes seconds to find the end of a text such
as that of `(a{1000}){1000}`. Knows no tokens.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from llguidance import regex_to_lark

from glimpse.engine.sampling_params import Grammar, GrammarKind

_JSON_OPTIONS = {
    "whitespace_pattern": r" |\n(?: {0,32}|\t{0,8})",  # a blank, or a line break and what indents the next line
    "json_allowed_escapes": 'nrbtf\\"',
}
_LARK_OPTIONS = "%llguidance " + json.dumps({"no_forcing": True})
_LARK_PIECES = re.compile(
    r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|(?:\#|//)[^\n]*|<[^<>\s]+>|(?P<keyword>%(?:json|regex|llguidance))\b\s*'
)
"""Strings, regular expressions, comments, special tokens; and the words that JSON follows."""

_MAX_NESTING = 120
"""Of JSON; llguidance reads no more than 127."""


class GrammarError(ValueError):
    """A grammar that cannot be enforced; the message, for the client, names the feature or the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineJson:
    """JSON in a Lark grammar."""

    keyword: str
    """What stands before it: %json, %regex or %llguidance."""
    start: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LarkText:
    """A Lark grammar as far as one can read it without knowing its rules."""

    code: str
    """Without strings, regular expressions, comments, special tokens and JSON."""
    inlines: tuple[InlineJson, ...]


def to_lark(grammar: Grammar) -> str:
    """A grammar of any kind in llguidance's dialect of Lark.

    Raises:
        GrammarError: its text is not what its kind says.
    """
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            rules = _schema_rule({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            rules = _schema_rule(parse_json(grammar.text))
        case GrammarKind.REGEX:
            rules = _regex_rule(grammar.text)
        case GrammarKind.CHOICE:
            rules = _regex_rule("|".join(map(_escape, parse_choices(grammar.text))))
        case GrammarKind.LARK:
            rules = _with_options_inside(grammar.text)
        case _:
            assert_never(grammar.kind)
    return f"{rules}\n{_LARK_OPTIONS}\n"


def read_lark(lark: str) -> LarkText:
    """Takes a Lark grammar apart.

    Raises:
        GrammarError: where JSON should be is none.
    """
    code: list[str] = []
    inlines: list[InlineJson] = []
    end = 0
    while (piece := _LARK_PIECES.search(lark, end)) is not None:
        code.append(lark[end : piece.start()])
        end = piece.end()
        if piece["keyword"]:
            start = end
            try:
                value, end = json.JSONDecoder().raw_decode(lark, start)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"what follows {piece['keyword']} is not JSON: {error}") from error
            _check_nesting(value)
            inlines.append(InlineJson(keyword=piece["keyword"], start=start, end=end, value=value))
    return LarkText(code=" ".join((*code, lark[end:])), inlines=tuple(inlines))


def parse_json(text: str) -> Any:
    """A grammar's JSON text.

    Raises:
        GrammarError: it is not JSON.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it is not JSON: {error}") from error
    _check_nesting(value)
    return value


def parse_choices(text: str) -> list[str]:
    """The texts of which an answer is one.

    Raises:
        GrammarError: there are none, or some are no texts.
    """
    choices = parse_json(text)
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("choices are a list of texts")
    if not choices:
        raise GrammarError("there is no choice")
    return choices


def check_backslashes(regex: str) -> None:
    """llguidance leaves out a backslash at the end, which says nothing.

    Raises:
        GrammarError: there is one.
    """
    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise GrammarError(f"the pattern {regex[-20:]!r} ends with a backslash")


def _schema_rule(schema: Any) -> str:
    return f"start: %json {_with_options(schema)}"


def _with_options(schema: Any) -> str:
    return json.dumps(schema | {"x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else schema)


def _with_options_inside(lark: str) -> str:
    pieces: list[str] = []
    end = 0
    for inline in read_lark(lark).inlines:
        if inline.keyword == "%json":
            pieces += [lark[end : inline.start], _with_options(inline.value)]
            end = inline.end
    return "".join((*pieces, lark[end:]))


def _regex_rule(regex: str) -> str:
    check_backslashes(regex)
    # `d`: \d means 0-9, as most who write it believe.
    return f"start: /{regex_to_lark(regex, 'd')}/" if regex else 'start: ""'


def _escape(choice: str) -> str:
    """A regular expression for exactly this text."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
        for character in choice
    )


def _check_nesting(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_NESTING):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _members(outer)]
        if not level:
            return
    raise GrammarError(f"its JSON is nested more than {_MAX_NESTING} deep")


def _members(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
