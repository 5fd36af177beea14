"""Combines the response format and the tools of a request into one grammar; refuses what cannot be enforced.

Independent of protobuf.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glimpse.engine.sampling_params import Grammar, GrammarKind
from glimpse.engine.text.conversation import ToolDefinition, ToolMode
from glimpse.engine.text.grammar_check import GrammarChecker, GrammarError
from glimpse.engine.text.tokenizer import Tokenizer
from glimpse.engine.text.tools import ToolFormat, tag_ids, tool_grammar, unenforceable
from glimpse.server.generation.completion_parser import ToolCallReader
from glimpse.server.request import Constraint, GenerationRequest, Tools
from glimpse.server.rpc.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraints:
    """How the completions of a request are constrained and detokenized."""

    grammar: Grammar | None
    """None: any text is allowed."""
    visible_special_ids: frozenset[int]
    """Special tokens that are decoded to text nevertheless: the tags of tool calls."""


_ANY_OBJECT = '{"type": "object"}'

UNCONSTRAINED = OutputConstraints(grammar=None, visible_special_ids=frozenset())
"""Any text, no tool calls."""


class ConstraintBuilder:
    """Builds output constraints for one checkpoint."""

    def __init__(self, *, checker: GrammarChecker, tokenizer: Tokenizer, tool_format: ToolFormat | None) -> None:
        """`tool_format` is None if the chat template does not support tools."""
        self._checker = checker
        self._format = tool_format
        self._tag_ids = {} if tool_format is None else tag_ids(tool_format, tokenizer)

    def build(self, request: GenerationRequest) -> OutputConstraints:
        """Compiles grammars, so it may take hundreds of milliseconds. Raises InvalidRequest."""
        constraint = request.constraint
        if constraint is not None:
            self._check(constraint)
        if request.tools is not None:
            constraint = self._with_tools(request.tools, self._require_format(), constraint)
        return OutputConstraints(
            grammar=None if constraint is None else constraint.grammar,
            visible_special_ids=frozenset(self._tag_ids.values()) if request.tools is not None else frozenset(),
        )

    def tool_call_reader(self, tools: Tools) -> ToolCallReader:
        """Returns a reader for one completion. Raises InvalidRequest if the model does not support tools."""
        return ToolCallReader(self._require_format(), tools)

    def _require_format(self) -> ToolFormat:
        if self._format is None:
            message = "the model's chat template does not support tools (see the server's --tool-call-parser)"
            raise InvalidRequest("tools", message, "unsupported")
        return self._format

    def _with_tools(
        self, tools: Tools, tool_format: ToolFormat, response_format: Constraint | None
    ) -> Constraint | None:
        """Constrains tool calls to the tools, and a completion without any to the response format."""
        if response_format is not None and tool_format.bare and tools.choice is ToolMode.AUTO:
            message = (
                "cannot be combined with tools: "
                "this model writes tool calls as plain JSON, so JSON output could be read as a tool call"
            )
            raise InvalidRequest(response_format.field, message, "conflicting_values")
        schema = None if response_format is None else _json_schema(response_format.grammar)
        # Whether there is a grammar does not depend on the tools' schemas, which are unchecked yet.
        grammar = self._tool_grammar(tools, tool_format, schema, _with_any_arguments(tools.definitions))
        if grammar is None:
            return None
        if grammar.trigger is not None:
            return self._if_called(tools, tool_format)
        grammar = self._tool_grammar(tools, tool_format, schema, self._all_enforceable(tools.definitions))
        if grammar is None:
            return None
        constraint = Constraint(grammar=grammar, field="tools")
        self._check(constraint)
        return constraint

    def _if_called(self, tools: Tools, tool_format: ToolFormat) -> Constraint | None:
        """Constrains tool calls from their opening on, as far as that is possible: no schema is refused."""
        for simplify in (tuple[ToolDefinition, ...], self._all_enforceable, _with_any_arguments):
            grammar = self._tool_grammar(tools, tool_format, None, simplify(tools.definitions))
            try:
                constraint = None if grammar is None else Constraint(grammar=grammar, field="tools")
                if constraint is not None:
                    self._check(constraint)
                return constraint
            except InvalidRequest:
                continue
        return None

    def _all_enforceable(self, tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
        return tuple(self._enforceable(tool, f"tools[{index}].function.parameters") for index, tool in enumerate(tools))

    def _tool_grammar(
        self, tools: Tools, tool_format: ToolFormat, response_schema: str | None, definitions: Sequence[ToolDefinition]
    ) -> Grammar | None:
        return tool_grammar(
            tool_format,
            definitions,
            tools.choice,
            parallel=tools.parallel,
            tag_ids=self._tag_ids,
            response_schema=response_schema,
        )

    def _enforceable(self, tool: ToolDefinition, field: str) -> ToolDefinition:
        """Returns the tool; if it is not strict and its schema cannot be enforced, with a schema of any object."""
        schema = Constraint(grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text=tool.parameters), field=field)
        try:
            self._check(schema)
            self._check_format(tool, field)
        except InvalidRequest:
            if tool.strict:
                raise
            return replace(tool, parameters=_ANY_OBJECT)
        return tool

    def _check_format(self, tool: ToolDefinition, field: str) -> None:
        """Raises InvalidRequest if the calls of a strict tool are not JSON and cannot be made to match its schema."""
        if tool.strict and self._require_format().is_xml and (reason := unenforceable(tool)) is not None:
            message = f"cannot be enforced in the model's tool calls, which are not JSON: {reason}"
            raise InvalidRequest(field, message, "unsupported")

    def _check(self, constraint: Constraint) -> None:
        try:
            self._checker.check(constraint.grammar)
        except GrammarError as error:
            message = f"cannot be enforced: {error}"
            raise InvalidRequest(constraint.field, message, "unsupported") from error


def _with_any_arguments(tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    return tuple(replace(tool, parameters=_ANY_OBJECT) for tool in tools)


def _json_schema(response_format: Grammar) -> str:
    """The response format as a JSON Schema; parsing allows no other format together with tools."""
    return response_format.text if response_format.kind is GrammarKind.JSON_SCHEMA else _ANY_OBJECT
