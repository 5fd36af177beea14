"""What the answers of a request are held to, as one grammar; what cannot be enforced is refused. Knows no protobuf."""

from dataclasses import dataclass, replace

from glimpse.engine.sampling_params import Grammar, GrammarKind
from glimpse.engine.text.conversation import ToolDefinition, ToolMode
from glimpse.engine.text.grammar_check import GrammarChecker, GrammarError
from glimpse.engine.text.tokenizer import Tokenizer
from glimpse.engine.text.tools import ToolFormat, tag_ids, tool_grammar
from glimpse.server.generation.completion import CallReader
from glimpse.server.request import AnswerRequest, Constraint, Tools
from glimpse.server.rpc.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How the answers of a request are written and read."""

    grammar: Grammar | None
    """None: they may say anything."""
    shown_ids: frozenset[int]
    """Special tokens that have text all the same: the tags of calls."""


_ANY_OBJECT = '{"type": "object"}'

FREE = Held(grammar=None, shown_ids=frozenset())
"""Answers that may say anything and call nothing."""


class Enforcement:
    """What one checkpoint's answers can be held to."""

    def __init__(self, *, checker: GrammarChecker, tokenizer: Tokenizer, tool_format: ToolFormat | None) -> None:
        """`tool_format` is None where the chat template knows no tools."""
        self._checker = checker
        self._format = tool_format
        self._tag_ids = {} if tool_format is None else tag_ids(tool_format, tokenizer)

    def held(self, request: AnswerRequest) -> Held:
        """May take a while. Raises InvalidRequest for what cannot be enforced."""
        constraint = request.constraint
        if constraint is not None:
            self._check(constraint)
        if request.tools is not None:
            constraint = self._calls(request.tools, self._require_format(), constraint)
            if constraint is not None:
                self._check(constraint)
        return Held(
            grammar=None if constraint is None else constraint.grammar,
            shown_ids=frozenset(self._tag_ids.values()) if request.tools is not None else frozenset(),
        )

    def call_reader(self, tools: Tools) -> CallReader:
        """What finds the calls in one answer's text. Raises InvalidRequest where the model knows no tools."""
        return CallReader(self._require_format(), tools)

    def _require_format(self) -> ToolFormat:
        if self._format is None:
            raise InvalidRequest(
                "tools", "The model's chat template knows no tools (the server's --tool-call-parser).", "unsupported"
            )
        return self._format

    def _calls(self, tools: Tools, tool_format: ToolFormat, form: Constraint | None) -> Constraint | None:
        """What calls are held to, and an answer without any to its form."""
        if form is not None and tool_format.bare and tools.choice is ToolMode.AUTO:
            message = "This model writes calls as JSON without any mark: an answer in JSON could be taken for one."
            raise InvalidRequest(form.field, message, "conflicting_values")
        schema = None if form is None else _schema(form.grammar)
        if self._tool_grammar(tools, tool_format, schema) is None:
            return None
        definitions = tuple(
            self._enforceable(tool, f"tools[{index}].function.parameters")
            for index, tool in enumerate(tools.definitions)
        )
        grammar = self._tool_grammar(replace(tools, definitions=definitions), tool_format, schema)
        return None if grammar is None else Constraint(grammar=grammar, field="tools")

    def _tool_grammar(self, tools: Tools, tool_format: ToolFormat, form: str | None) -> Grammar | None:
        return tool_grammar(
            tool_format, tools.definitions, tools.choice, parallel=tools.parallel, tag_ids=self._tag_ids, form=form
        )

    def _enforceable(self, tool: ToolDefinition, field: str) -> ToolDefinition:
        """The tool; one that is not strict takes any arguments where its own schema cannot be enforced."""
        schema = Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text=tool.parameters), field=field)
        try:
            self._check(schema)
        except InvalidRequest:
            if tool.strict:
                raise
            return replace(tool, parameters=_ANY_OBJECT)
        return tool

    def _check(self, constraint: Constraint) -> None:
        try:
            self._checker.check(constraint.grammar)
        except GrammarError as error:
            message = f"'{constraint.field}' cannot be enforced: {error}."
            raise InvalidRequest(constraint.field, message, "unsupported") from error


def _schema(form: Grammar) -> str:
    """The JSON Schema of a form in which tools may be called; parsing allows no other form beside tools."""
    return form.text if form.kind is GrammarKind.JSON_SCHEMA else _ANY_OBJECT
