"""Translates grammars of every kind to llguidance's dialect of Lark, and scans Lark grammars.

JSON output uses no unnecessary escapes, so that a key has one spelling, and little white space, because an uncertain
model would otherwise emit blanks until its token limit. The model samples every token, even where only one text is
possible: llguidance could force those tokens, but takes seconds to find the end of a text such as `(a{1000}){1000}`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from llguidance import regex_to_lark

from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, ReasoningTags

_JSON_OPTIONS = {
    "whitespace_pattern": r" |\n(?: {0,32}|\t{0,8})",  # a blank, or a line break and indentation
    "json_allowed_escapes": 'nrbtf\\"',
    "coerce_one_of": True,  # to `anyOf`: llguidance refuses alternatives unless it is sure that they exclude each other
}
_LARK_OPTIONS = "%llguidance " + json.dumps({"no_forcing": True})
_LARK_LEXEMES = re.compile(
    r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|(?:\#|//)[^\n]*|<[^<>\s]+>|(?P<keyword>%(?:json|regex|llguidance))\b\s*'
)
"""Strings, regular expressions, comments, special tokens, and the keywords that JSON follows."""

_MAX_NESTING = 120
"""Levels of JSON; llguidance reads at most 127."""


class GrammarError(ValueError):
    """A grammar cannot be enforced. The message is for the client and names the feature or its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineJson:
    """A JSON value in a Lark grammar."""

    keyword: str
    """The keyword before it: %json, %regex or %llguidance."""
    start: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LarkText:
    """A Lark grammar after lexical analysis."""

    code: str
    """The source without strings, regular expressions, comments, special tokens and JSON."""
    inlines: tuple[InlineJson, ...]


def to_lark(grammar: Grammar) -> str:
    """Translates a grammar to llguidance's dialect of Lark.

    Raises:
        GrammarError: the text does not match the grammar's kind.
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
            rules = replace_schemas(grammar.text, _with_options)
        case _:
            assert_never(grammar.kind)
    return f"{rules}\n{_LARK_OPTIONS}\n"


def lark_literal(text: str, token_ids: Mapping[str, int]) -> str:
    """Quotes a text for Lark; the special tokens in `token_ids`, text → id, become ids."""
    parts = re.split("|".join(f"({re.escape(token)})" for token in token_ids), text) if token_ids else [text]
    return " ".join(f"<[{token_ids[part]}]>" if part in token_ids else json.dumps(part) for part in parts if part)


def reasoning_before(answer: str, tags: ReasoningTags) -> str:
    """Returns a grammar in llguidance's dialect of Lark for reasoning between tags, then the grammar named `answer`.

    The reasoning is free: any text up to the closing tag. A model that has not begun it may leave it out. Where white
    space before the answer does not matter, two line breaks are allowed there, because models are used to them.
    """
    special = dict(tags.special_ids)
    opening, closing = lark_literal(tags.opening, special), lark_literal(tags.closing, special)
    blank = r"/\n{0,2}/" if tags.strips_answer else ""
    if tags.closing in special:
        reasoning = [f"reasoning: TEXT {closing}", "TEXT: /(?s:.*)/"]
    else:
        escaped = re.escape(tags.closing).replace("/", r"\/")
        reasoning = [f"reasoning[lazy]: /(?s:.*){escaped}/"]  # lazy: it ends with the first closing tag
    start = f"reasoning {blank}" if tags.is_open else f"({opening} reasoning {blank})?"
    return "\n".join((f"start: {start} @{answer}", *reasoning, _LARK_OPTIONS, ""))


def read_lark(lark: str) -> LarkText:
    """Separates a Lark grammar's code from its JSON values.

    Raises:
        GrammarError: a keyword is not followed by JSON.
    """
    code: list[str] = []
    inlines: list[InlineJson] = []
    end = 0
    while (lexeme := _LARK_LEXEMES.search(lark, end)) is not None:
        code.append(lark[end : lexeme.start()])
        end = lexeme.end()
        if lexeme["keyword"]:
            start = end
            try:
                value, end = json.JSONDecoder().raw_decode(lark, start)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"expected JSON after {lexeme['keyword']}: {error}") from error
            _check_nesting(value)
            inlines.append(InlineJson(keyword=lexeme["keyword"], start=start, end=end, value=value))
    return LarkText(code=" ".join((*code, lark[end:])), inlines=tuple(inlines))


def parse_json(text: str) -> Any:
    """Parses the JSON text of a grammar.

    Raises:
        GrammarError: the text is not JSON.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"expected JSON: {error}") from error
    _check_nesting(value)
    return value


def parse_choices(text: str) -> list[str]:
    """Parses the list of texts that a choice grammar allows.

    Raises:
        GrammarError: the text is not a JSON list of at least one string.
    """
    choices = parse_json(text)
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("expected a JSON list of strings")
    if not choices:
        raise GrammarError("expected at least one choice")
    return choices


def check_backslashes(regex: str) -> None:
    """Refuses a trailing backslash, which llguidance ignores.

    Raises:
        GrammarError: the pattern ends with a backslash.
    """
    if (len(regex) - len(regex.rstrip("\\"))) % 2:
        raise GrammarError(f"the pattern {regex[-20:]!r} ends with a backslash")


def _schema_rule(schema: Any) -> str:
    return f"start: %json {_with_options(schema)}"


def _with_options(schema: Any) -> str:
    return json.dumps(schema | {"x-guidance": _JSON_OPTIONS} if isinstance(schema, dict) else schema)


def replace_schemas(lark: str, replace: Callable[[Any], str]) -> str:
    """Returns a Lark grammar in which the text of each JSON Schema is what `replace` makes of the schema.

    Raises:
        GrammarError: a keyword is not followed by JSON.
    """
    pieces: list[str] = []
    end = 0
    for inline in read_lark(lark).inlines:
        if inline.keyword == "%json":
            pieces += [lark[end : inline.start], replace(inline.value)]
            end = inline.end
    return "".join((*pieces, lark[end:]))


def _regex_rule(regex: str) -> str:
    check_backslashes(regex)
    # `d`: \d matches 0-9 only.
    return f"start: /{regex_to_lark(regex, 'd')}/" if regex else 'start: ""'


def _escape(choice: str) -> str:
    """Returns a regular expression that matches exactly this text."""
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
    raise GrammarError(f"the JSON is nested more than {_MAX_NESTING} levels deep")


def _members(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
