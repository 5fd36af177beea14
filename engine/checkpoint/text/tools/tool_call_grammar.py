"""Writes grammars for tool calls in llguidance's dialect of Lark. Does not check or compile them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import assert_never

from glimpse.engine.checkpoint.grammar.lark import lark_literal
from glimpse.engine.checkpoint.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.tools.formats import ToolFormat
from glimpse.engine.checkpoint.text.tools.python_call_grammar import python_call_rules
from glimpse.engine.checkpoint.text.tools.quoted_call_grammar import QuotedCallWriter, unenforced_in_quoted
from glimpse.engine.checkpoint.text.tools.xml_call_grammar import xml_call_rules
from glimpse.engine.checkpoint.text.tools.xml_parameters import unenforced_in_parameters, unenforced_in_xml
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, GrammarTrigger

_SPACE = r"[ \t\r\n]{0,4}"
_HEAD = rf'\{{{_SPACE}("type"{_SPACE}:{_SPACE}"function"{_SPACE},{_SPACE})?"name"{_SPACE}:'
"""Regular expression of how a call in JSON begins, up to the name. JSON that begins otherwise is an answer."""
_BARE_CALL = f"{_SPACE}{_HEAD}"
_BARE_LIST = rf"{_SPACE}\[{_SPACE}{_HEAD}"


def tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    *,
    parallel: bool,
    tag_ids: Mapping[str, int] | None = None,
    response: Grammar | None = None,
) -> Grammar | None:
    """Returns a grammar for the completions that a tool choice allows; None if it allows any.

    Tool calls name one of the tools and have arguments that match its schema, strict or not, so all schemas must be
    enforceable. Where the model is free to call tools or not, the grammar has a trigger: it begins with a call. With
    strict tools, and where a single call is allowed, it constrains the whole completion: text that the parser reads as
    a call, but that is no trigger, is not allowed then.

    Args:
        tools: The tools offered, at least one, with unique names.
        choice: Which tools may or must be called. A named tool is called exactly once.
        parallel: Several calls are allowed, unless `choice` names a tool.
        tag_ids: Tag → token id, for the format's tags that are special tokens.
        response: JSON that a completion without tool calls is; None: any text. Not supported for bare formats, whose
            calls cannot be told from other JSON.
    """
    writer = _GrammarWriter(tool_format, tag_ids or {})
    match choice:
        case ToolMode.NONE:
            return None
        case ToolMode.AUTO if response is not None:
            rules = writer.json_or_calls(tools, response, several=parallel)
        case ToolMode.AUTO:
            if parallel and not any(tool.strict for tool in tools):
                return _lark(writer.begun_calls(tools), writer.trigger)
            rules = writer.text_or_calls(tools, several=parallel)
        case ToolMode.REQUIRED:
            rules = writer.calls(tools, several=parallel)
        case NamedTool(name=name):
            rules = writer.calls([tool for tool in tools if tool.name == name], several=False)
        case _:
            assert_never(choice)
    return _lark(rules)


def unenforced_in_calls(tool_format: ToolFormat, tool: ToolDefinition) -> tuple[str, ...]:
    """Returns the keywords of a tool's schema that no grammar of the format enforces, as JSON pointers."""
    if tool_format.quote:
        return unenforced_in_quoted(tool)
    if tool_format.is_python:
        return unenforced_in_parameters(tool)
    return unenforced_in_xml(tool) if tool_format.xml else ()


def _lark(rules: Sequence[str], trigger: GrammarTrigger | None = None) -> Grammar:
    return Grammar(kind=GrammarKind.LARK, text="".join(f"{rule}\n" for rule in rules), trigger=trigger)


class _GrammarWriter:
    """Writes grammar rules for one tool format."""

    def __init__(self, tool_format: ToolFormat, tag_ids: Mapping[str, int]) -> None:
        self._format = tool_format
        self._tag_ids = tag_ids

    def calls(self, tools: Sequence[ToolDefinition], *, several: bool) -> list[str]:
        return [f"start: {self._opening} calls", *self._call_rules(tools, several=several)]

    def json_or_calls(self, tools: Sequence[ToolDefinition], response: Grammar, *, several: bool) -> list[str]:
        """Either JSON or tool calls."""
        assert not self._format.bare
        return [
            f"start: response | {self._opening} calls",
            *_response_rules(response),
            *self._call_rules(tools, several=several),
        ]

    def text_or_calls(self, tools: Sequence[ToolDefinition], *, several: bool) -> list[str]:
        """Text, optionally followed by tool calls."""
        opening = self._format.opening
        # A completion whose first character could begin a tool call must be one.
        text = r"/\s*([^\s\[{](?s:.*))?/" if self._format.bare else "/(?s:.*)/"
        if function := self._function:
            text = f"({text} & ~/(?s:.*{_regex(function)}.*)/)"
        alternatives = ["TEXT", "calls"] if self._format.bare else ["TEXT"]
        rules = [f"TEXT: {text}"]
        if opening in self._tag_ids:
            alternatives += [f"TEXT {self._literal(opening)} calls"]
        elif opening:
            # Lazy: the text ends with the first opening tag, which a tool call must follow.
            rules += [f"opened[lazy]: {text} {json.dumps(opening)}"]
            alternatives += ["opened calls"]
        return [f"start: {' | '.join(alternatives)}", *rules, *self._call_rules(tools, several=several)]

    @property
    def trigger(self) -> GrammarTrigger:
        """Where `begun_calls` begins."""
        opening = self._format.opening
        is_token = opening in self._tag_ids
        texts = [each for each in ("" if is_token else opening, self._function) if each]
        return GrammarTrigger(
            token_ids=(self._tag_ids[opening],) if is_token else (),
            texts=tuple(texts),
            start_pattern=f"{_BARE_CALL}|{_BARE_LIST}" if self._format.bare else "",
        )

    def begun_calls(self, tools: Sequence[ToolDefinition]) -> list[str]:
        """Tool calls from their opening on, which the model has written already."""
        opening = self._format.opening
        between, after = map(self._literal, (self._format.between, self._format.after))
        rules, alternatives = list[str](), list[str]()
        if opening in self._tag_ids:
            alternatives.append(f"{self._literal(opening)} calls")
        elif opening:  # text before the tag may be in the same token
            alternatives.append("opened calls")
            rules.append(f"opened[lazy]: /(?s:.*)/ {json.dumps(opening)}")
        if function := self._function:
            alternatives.append(f"function body ({between} call)* {after}")
            rules.append(f"function[lazy]: /(?s:.*)/ {json.dumps(function)}")
            rules.append(f"body: {' | '.join(f'body_{index}' for index in range(len(tools)))}")
        if self._format.bare:
            alternatives += [f"one body ({between} call)*", 'list body ("," call)* "]"']
            rules += [f"one[lazy]: /{_BARE_CALL}/", f"list[lazy]: /{_BARE_LIST}/"]
            rules.append(f"body: {' | '.join(f'body_{index}' for index in range(len(tools)))}")
            rules += (self._json_body(index, tool) for index, tool in enumerate(tools))
        return [f"start: {' | '.join(alternatives)}", *rules, *self._call_rules(tools, several=True)]

    def _json_body(self, index: int, tool: ToolDefinition) -> str:
        """Returns the rule of a call in JSON, from the colon before its name on."""
        text = f"{json.dumps(tool.name)}, {json.dumps(self._format.arguments_key)}: "
        return f'body_{index}: /{_SPACE}/ {json.dumps(text)} arguments_{index} "}}"'

    @property
    def _function(self) -> str:
        """What begins a call even without the opening tag; may be empty."""
        return self._format.xml.function if self._format.xml else ""

    @property
    def _opening(self) -> str:
        return "" if self._format.bare else self._literal(self._format.opening)

    def _call_rules(self, tools: Sequence[ToolDefinition], *, several: bool) -> list[str]:
        before, between, after = map(self._literal, (self._format.before, self._format.between, self._format.after))
        rules = [
            f"calls: {before} call {f'({between} call)*' if several else ''} {after}",
            f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}",
        ]
        if quote := self._format.quote:
            writer = QuotedCallWriter(quote, self._literal, is_token=quote in self._tag_ids)
            for index, tool in enumerate(tools):
                writer.add_call(index, tool)
            return [*rules, *writer.rules()]
        for index, tool in enumerate(tools):
            if self._format.is_python:
                rules += python_call_rules(index, tool)
                continue
            if xml := self._format.xml:
                rules += xml_call_rules(index, tool, xml)
                continue
            rules.append(f"call_{index}: {self._call(tool.name, f'arguments_{index}')}")
            rules.append(f"arguments_{index}: %json {_arguments_schema(tool)}")
        return rules

    def _call(self, name: str, arguments: str) -> str:
        """Returns the right side of the rule of a call whose arguments are a rule."""
        if tag := self._format.arguments_tag:
            return f"{json.dumps(name)} {self._literal(tag)} {arguments}"
        head = f'{{"name": {json.dumps(name)}, {json.dumps(self._format.arguments_key)}: '
        return f'{json.dumps(head)} {arguments} "}}"'

    def _literal(self, text: str) -> str:
        return lark_literal(text, self._tag_ids)


def _response_rules(response: Grammar) -> list[str]:
    if response.kind is GrammarKind.LARK:
        return response.text.replace("start:", "response:", 1).splitlines()
    schema = response.text if response.kind is GrammarKind.JSON_SCHEMA else json.dumps({"type": "object"})
    return [f"response: %json {schema}"]


def _arguments_schema(tool: ToolDefinition) -> str:
    return json.dumps({"type": "object"} | json.loads(tool.parameters), ensure_ascii=False)


def _regex(text: str) -> str:
    """Escapes a text for a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")
