"""Combines the response format and the tools of a request into one grammar; lists what of it cannot be enforced.

Independent of protobuf.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from glimpse.engine.checkpoint.grammar.unenforced_log import UnenforcedLog
from glimpse.engine.checkpoint.text.conversation import ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.grammar_check import (
    MAX_GRAMMAR_BYTES,
    CompileBudget,
    EnforcedGrammar,
    GrammarChecker,
    GrammarError,
    GrammarTooLargeError,
    check_text,
)
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import ToolFormat, tag_ids, tool_grammar, unenforced_in_calls
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.completion_parser import ToolCallReader
from glimpse.server.request import AnswerReader, Constraint, GenerationRequest, Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraints:
    """How the completions of a request are constrained and detokenized."""

    grammar: Grammar | None
    """None: any text is allowed."""
    visible_special_ids: frozenset[int]
    """Special tokens that are decoded to text nevertheless: the tags of tool calls."""
    unenforced: tuple[str, ...] = ()
    """What the client asked for and the grammar does not ensure: keywords of schemas, such as
    `tools[0].function.parameters#/properties/path/format`. A path that ends with # is a whole schema."""
    reader: AnswerReader | None = None
    """Reads completions as messages; None: they are text alone."""


MAX_SCHEMA_BYTES = 1 << 20
"""Bytes of all schemas and grammars of a request together."""
_ANY_OBJECT = '{"type": "object"}'
_NUM_REMEMBERED = 32
"""Requests whose constraints are remembered: those of an agent all have the same tools."""

UNCONSTRAINED = OutputConstraints(grammar=None, visible_special_ids=frozenset())
"""Any text, no tool calls."""


class ConstraintBuilder:
    """Builds output constraints for one checkpoint. Thread-safe."""

    def __init__(self, *, checker: GrammarChecker, tokenizer: Tokenizer, tool_format: ToolFormat | None) -> None:
        """`tool_format` is None if the chat template does not support tools."""
        self._checker = checker
        self._format = tool_format
        self._tag_ids = {} if tool_format is None else tag_ids(tool_format, tokenizer)
        self._log = UnenforcedLog()
        self._latest = OrderedDict[Hashable, OutputConstraints]()
        self._lock = Lock()  # keys are compared in Python: an OrderedDict that changes meanwhile ends the process

    def find(self, request: GenerationRequest) -> OutputConstraints | None:
        """Returns the constraints of a request if they need no work.

        Raises InvalidRequest: the schemas are more than is compiled for any request.
        """
        if request.tools is None and request.constraint is None:
            return UNCONSTRAINED
        _check_size(request)
        key = _key(request)
        with self._lock:
            found = self._latest.pop(key, None)
            if found is not None:
                self._latest[key] = found  # the last to be forgotten
        return found

    def build(self, request: GenerationRequest, is_stopped: Callable[[], bool] = lambda: False) -> OutputConstraints:
        """Compiles grammars, so it may take hundreds of milliseconds.

        Raises:
            InvalidRequest: something cannot be enforced.
            CheckStoppedError: `is_stopped` returned True between two schemas.
        """
        _check_size(request)
        build = _Build(self._checker, self._format, self._tag_ids, is_stopped)
        constraint = build.constraint(request)
        self._log.tell(build.unenforced)
        constraints = OutputConstraints(
            grammar=None if constraint is None else constraint.grammar,
            visible_special_ids=frozenset(self._tag_ids.values()) if request.tools is not None else frozenset(),
            unenforced=tuple(build.unenforced),
            reader=build.reader,
        )
        if sum(_sizes(request).values()) <= MAX_GRAMMAR_BYTES:
            with self._lock:
                self._latest[_key(request)] = constraints
                if len(self._latest) > _NUM_REMEMBERED:
                    self._latest.popitem(last=False)
        return constraints

    def tool_call_reader(self, tools: Tools) -> ToolCallReader:
        """Returns a reader for one completion. Raises InvalidRequest if the model does not support tools."""
        return ToolCallReader(_required(self._format), tools)


class _Build:
    """The build of one request's constraint."""

    def __init__(
        self,
        checker: GrammarChecker,
        tool_format: ToolFormat | None,
        tag_ids: Mapping[str, int],
        is_stopped: Callable[[], bool],
    ) -> None:
        self.unenforced: list[str] = []
        self.reader: AnswerReader | None = None
        self._checker = checker
        self._format = tool_format
        self._tag_ids = tag_ids
        self._of_schemas = CompileBudget(is_stopped)
        self._of_tools = CompileBudget(is_stopped)
        """Budget of the tools' grammar, which must be possible without arguments when the schemas are too much."""

    def constraint(self, request: GenerationRequest) -> Constraint | None:
        """Returns what constrains the completions. Raises InvalidRequest, CheckStoppedError."""
        constraint = request.constraint
        if constraint is not None:
            constraint = self._checked(self._with_reader(constraint))
        if request.tools is not None:
            constraint = self._with_tools(request.tools, _required(self._format), constraint)
        return constraint

    def _with_reader(self, constraint: Constraint) -> Constraint:
        """Reads the message type of a constraint, which has its grammar then."""
        if constraint.answer_type is None:
            return constraint
        self.reader = constraint.answer_type.reader(constraint.field)
        return replace(constraint, grammar=self.reader.grammar)

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
        response = None if response_format is None else response_format.grammar
        offered = _offered(tools)
        simplifications = [self._enforced_quickly, self._enforced]
        if not any(tool.strict for tool in offered.values()):
            simplifications.append(_with_any_arguments)
        failure, tried = GrammarError(), None
        for simplified in simplifications:
            if isinstance(failure, GrammarTooLargeError) and simplified == self._enforced:
                continue  # compiling each schema alone would take long and make the whole no smaller
            told = list[str]()
            definitions = [simplified(tool, field, told) for field, tool in offered.items()]
            grammar = self._tool_grammar(tools, tool_format, response, definitions)
            if grammar is None:
                return None
            if grammar == tried:
                continue
            tried = grammar
            try:
                self._checker.check(grammar, self._of_tools)
            except GrammarError as error:
                failure = error
                if grammar.trigger is not None and simplified is _with_any_arguments:
                    self.unenforced.append("tools")
                    return None
            else:
                self.unenforced += told
                return Constraint(grammar=grammar, field="tools")
        raise _refusal("tools", failure)

    def _tool_grammar(
        self, tools: Tools, tool_format: ToolFormat, response: Grammar | None, definitions: Sequence[ToolDefinition]
    ) -> Grammar | None:
        return tool_grammar(
            tool_format,
            definitions,
            tools.choice,
            parallel=tools.parallel,
            tag_ids=self._tag_ids,
            response=response,
        )

    def _enforced_quickly(self, tool: ToolDefinition, field: str, told: list[str]) -> ToolDefinition:
        return self._with_schema(check_text, tool, field, told)

    def _enforced(self, tool: ToolDefinition, field: str, told: list[str]) -> ToolDefinition:
        return self._with_schema(self._check, tool, field, told)

    def _with_schema(
        self, check: Callable[[Grammar], EnforcedGrammar], tool: ToolDefinition, field: str, told: list[str]
    ) -> ToolDefinition:
        """Returns the tool with the part of its schema that can be enforced, and tells the rest.

        If the schema is refused, a strict tool raises InvalidRequest, and any other takes any object.
        """
        self._of_schemas.go_on()
        try:
            schema = check(Grammar(kind=GrammarKind.JSON_SCHEMA, text=tool.parameters))
        except GrammarError as error:
            if tool.strict:
                raise _refusal(field, error) from error
            return _with_any_arguments(tool, field, told)
        tool = replace(tool, parameters=schema.grammar.text)
        in_format = unenforced_in_calls(_required(self._format), tool)
        told += (f"{field}{pointer}" for pointer in (*schema.unenforced, *in_format))
        return tool

    def _check(self, grammar: Grammar) -> EnforcedGrammar:
        return self._checker.check(grammar, self._of_schemas)

    def _checked(self, constraint: Constraint) -> Constraint:
        try:
            enforced = self._check(constraint.grammar)
        except GrammarError as error:
            raise _refusal(constraint.field, error) from error
        self.unenforced += (f"{constraint.field}{pointer}" for pointer in enforced.unenforced)
        return replace(constraint, grammar=enforced.grammar)


def _required(tool_format: ToolFormat | None) -> ToolFormat:
    if tool_format is None:
        message = "the model's chat template does not support tools (see the server's --tool-call-parser)"
        raise InvalidRequest("tools", message, "unsupported")
    return tool_format


def _check_size(request: GenerationRequest) -> None:
    sizes = _sizes(request)
    num_bytes = sum(sizes.values())
    if num_bytes > MAX_SCHEMA_BYTES:
        message = f"expected at most {MAX_SCHEMA_BYTES} bytes of schemas in a request, got {num_bytes}"
        raise InvalidRequest(max(sizes, key=sizes.__getitem__), f"{message}: send fewer tools or smaller schemas")


def _sizes(request: GenerationRequest) -> dict[str, int]:
    """Bytes of schemas and grammars, by the fields that have them."""
    offered = {} if request.tools is None else _offered(request.tools)
    sizes = {"tools": sum(_size(tool.parameters) for tool in offered.values())}
    if request.constraint is not None:
        described = request.constraint.answer_type
        num_bytes = _size(request.constraint.grammar.text) if described is None else described.num_bytes
        sizes[request.constraint.field] = num_bytes
    return sizes


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _key(request: GenerationRequest) -> Hashable:
    """All that a request's constraints depend on."""
    tools = request.tools
    if tools is None:
        return request.constraint
    offered = ((field, tool.name, tool.parameters, tool.strict) for field, tool in _offered(tools).items())
    return request.constraint, tools.choice, tools.parallel, *offered


def _offered(tools: Tools) -> dict[str, ToolDefinition]:
    """Returns the tools that the model may call, by the fields of their schemas."""
    return {
        f"tools[{index}].function.parameters": tool
        for index, tool in enumerate(tools.definitions)
        if tools.may_call(tool)
    }


def _with_any_arguments(tool: ToolDefinition, field: str, told: list[str]) -> ToolDefinition:
    told.append(f"{field}#")
    return replace(tool, parameters=_ANY_OBJECT)


def _refusal(field: str, error: GrammarError) -> InvalidRequest:
    return InvalidRequest(field, f"cannot be enforced: {error}", "unsupported")
