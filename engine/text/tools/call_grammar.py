"""Grammars of answers that call tools, in llguidance's dialect of Lark, made of a format's own pieces.

Knows no llguidance: whoever takes a grammar checks and compiles it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import assert_never

from glimpse.engine.sampling_params import Grammar, GrammarKind
from glimpse.engine.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.text.tools.formats import ToolFormat


def tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    *,
    parallel: bool,
    tag_ids: Mapping[str, int] | None = None,
    form: str | None = None,
) -> Grammar | None:
    """The language of the answers that a choice of tools allows; None where any answer is.

    The calls are of the tools offered, with arguments that meet their schemas, which are to be such as can be enforced:
    where a grammar is needed at all, it holds tools that are not strict to theirs too.

    Args:
        tool_format: In which the model writes.
        tools: Those offered, at least one; each has a name of its own.
        choice: Whether and which are called. A named tool is called once.
        parallel: Several calls are allowed where tools are not chosen by name.
        tag_ids: The format's tags that are single special tokens, and their ids.
        form: The JSON Schema, as JSON text, of an answer that calls nothing; None: it is any text. Not for formats that
            are bare: their calls begin like any JSON.
    """
    writer = _GrammarWriter(tool_format, tag_ids or {})
    match choice:
        case ToolMode.NONE:
            return None
        case ToolMode.AUTO if form is not None:
            rules = writer.form_or_calls(tools, form, several=parallel)
        case ToolMode.AUTO:
            if parallel and not any(tool.strict for tool in tools):
                return None
            rules = writer.text_or_calls(tools, several=parallel)
        case ToolMode.REQUIRED:
            rules = writer.calls(tools, several=parallel)
        case NamedTool(name=name):
            rules = writer.calls([tool for tool in tools if tool.name == name], several=False)
        case _:
            assert_never(choice)
    return Grammar(kind=GrammarKind.LARK, text="".join(f"{rule}\n" for rule in rules))


class _GrammarWriter:
    """Writes the rules of one format."""

    def __init__(self, tool_format: ToolFormat, tag_ids: Mapping[str, int]) -> None:
        self._format = tool_format
        self._tag_ids = tag_ids

    def calls(self, tools: Sequence[ToolDefinition], *, several: bool) -> list[str]:
        """Calls and nothing else."""
        return [f"start: {self._opening} calls", *self._call_rules(tools, several=several)]

    def form_or_calls(self, tools: Sequence[ToolDefinition], form: str, *, several: bool) -> list[str]:
        """Either JSON or calls."""
        assert not self._format.bare
        return [
            f"start: form | {self._opening} calls",
            f"form: %json {form}",
            *self._call_rules(tools, several=several),
        ]

    def text_or_calls(self, tools: Sequence[ToolDefinition], *, several: bool) -> list[str]:
        """Text, then perhaps calls, then the end."""
        opening = self._format.opening
        # An answer that could be taken for a call from its first character on must be one.
        text = r"/\s*([^\s\[{](?s:.*))?/" if self._format.bare else "/(?s:.*)/"
        forms = ["TEXT", "calls"] if self._format.bare else ["TEXT"]
        rules = [f"TEXT: {text}"]
        if opening in self._tag_ids:
            forms += [f"TEXT {self._literal(opening)} calls"]
        elif opening:
            # Lazy: the text ends with the first opening, and what follows it is a call.
            rules += [f"opened[lazy]: /{text[1:-1]}{_regex(opening)}/"]
            forms += ["opened calls"]
        return [f"start: {' | '.join(forms)}", *rules, *self._call_rules(tools, several=several)]

    @property
    def _opening(self) -> str:
        return "" if self._format.bare else self._literal(self._format.opening)

    def _call_rules(self, tools: Sequence[ToolDefinition], *, several: bool) -> list[str]:
        before, between, after = map(self._literal, (self._format.before, self._format.between, self._format.after))
        rules = [
            f"calls: {before} call {f'({between} call)*' if several else ''} {after}",
            f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}",
        ]
        for index, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool.name)}, {json.dumps(self._format.arguments_key)}: '
            rules.append(f'call_{index}: {json.dumps(head)} arguments_{index} "}}"')
            rules.append(f"arguments_{index}: %json {_arguments_schema(tool)}")
        return rules

    def _literal(self, text: str) -> str:
        """A text as Lark has it: strings, and the tags that are special tokens by their ids."""
        if not text:
            return ""
        parts = re.split("|".join(f"({re.escape(tag)})" for tag in self._tag_ids), text) if self._tag_ids else [text]
        return " ".join(
            f"<[{self._tag_ids[part]}]>" if part in self._tag_ids else json.dumps(part) for part in parts if part
        )


def _arguments_schema(tool: ToolDefinition) -> str:
    return json.dumps({"type": "object"} | json.loads(tool.parameters), ensure_ascii=False)


def _regex(text: str) -> str:
    """A text as a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")
