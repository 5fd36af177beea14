"""Streaming parser of tool calls that are XML, as Qwen3-Coder writes them; it reports arguments as JSON.

`<function=NAME>`, then a `<parameter=NAME>` element for each argument, then `</function>`. One line break belongs to
the tags on either side of a value. The values of string parameters stream; others are reported when they are complete.
"""

import json
from collections.abc import Sequence

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.formats import ToolFormat
from glimpse.engine.checkpoint.text.tools.parser import NotACallError, Reader, ToolParser, escaped
from glimpse.engine.checkpoint.text.tools.xml_parameters import XmlParameter, xml_parameters

FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"
_BEGUN = tuple(
    sorted(
        (tag[:size] for tag in (f"\n{PARAMETER_END}", PARAMETER_END) for size in range(1, len(tag))),
        key=len,
        reverse=True,
    )
)
"""Beginnings of the end of a value, longest first."""


class XmlToolParser(ToolParser):
    """Parses one completion."""

    def __init__(self, tool_format: ToolFormat, *, tools: Sequence[ToolDefinition]) -> None:
        """The arguments are those of `ToolParser`."""
        self._tools = {tool.name: tool for tool in tools}
        self._parameters: dict[str, dict[str, XmlParameter]] = {}
        """Parameters of the tools that were called: schemas may be long, and there may be many parsers."""
        super().__init__(tool_format, tools=tools, openings=(tool_format.opening, FUNCTION))

    def _read_calls(self, opening: str) -> Reader[None]:
        """Reads one call. Releases what is not a call."""
        is_open = False
        try:
            if opening != FUNCTION:
                yield from self._skip_space()
                yield from self._expect_text(FUNCTION)
            name = yield from self._read_name_to(">")
            if name not in self._names:
                raise NotACallError
            self._open_call(name)
            self._bare = False  # a further call begins with a tag
            is_open = True
            yield from self._read_parameters(self._parameters_of(name))
            self._withheld.clear()
        except NotACallError:
            if is_open and not self._ended:
                self._emit("}")
            if not (is_open and "".join(self._withheld).isspace()):
                self._release_failed("" if is_open else opening)

    def _parameters_of(self, name: str) -> dict[str, XmlParameter]:
        if name not in self._parameters:
            self._parameters[name] = {each.name: each for each in xml_parameters(self._tools[name]) or ()}
        return self._parameters[name]

    def _read_parameters(self, parameters: dict[str, XmlParameter]) -> Reader[None]:
        self._emit("{")
        separator = ""
        while (yield from self._read_one_of((PARAMETER, FUNCTION_END))) == PARAMETER:
            name = yield from self._read_name_to(">")
            self._withheld.clear()
            self._emit(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
            separator = ", "
            default = XmlParameter(name=name, schema={"type": "string"}, is_required=False)
            yield from self._read_value(parameters.get(name, default))
        self._emit("}")

    def _read_value(self, parameter: XmlParameter) -> Reader[None]:
        """Reads a value and its closing tag, and emits it as JSON; of strings as much as is certain."""
        if (yield from self._peek()) == "\n":
            self._read()
        if parameter.is_text:
            self._emit('"')
        text = ""
        while not text.endswith(PARAMETER_END):
            if not (yield from self._peek()):
                raise NotACallError
            text += self._read()
            if parameter.is_text and not text.endswith(PARAMETER_END):
                num_kept = _num_begun(text)
                self._emit(escaped(text[: len(text) - num_kept]))
                text = text[len(text) - num_kept :]
        value = text.removesuffix(PARAMETER_END).removesuffix("\n")
        self._emit(f'{escaped(value)}"' if parameter.is_text else parameter.to_json(value))

    def _read_one_of(self, tags: Sequence[str]) -> Reader[str]:
        """Reads white space and one of these tags; it is withheld."""
        yield from self._skip_space()
        read = ""
        while read not in tags:
            char = yield from self._peek()
            if not char or not any(tag.startswith(read + char) for tag in tags):
                raise NotACallError
            read += self._withhold()
        return read


def _num_begun(text: str) -> int:
    """Returns how many characters at the end of a value could begin its closing tag."""
    if not text.endswith(_BEGUN):
        return 0
    return next(len(begun) for begun in _BEGUN if text.endswith(begun))
