"""Streaming parser of tool calls whose arguments are elements (`XmlTags`); it reports arguments as JSON.

Qwen3-Coder writes `<function=NAME>`, then a `<parameter=NAME>` element for each argument, then `</function>`. The
values of string parameters stream; others are reported when they are complete.
"""

import json
from collections.abc import Sequence

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.formats import ToolFormat, XmlTags
from glimpse.engine.checkpoint.text.tools.parser import NotACallError, Reader, ToolParser, escaped
from glimpse.engine.checkpoint.text.tools.xml_parameters import XmlParameter, xml_parameters


class XmlToolParser(ToolParser):
    """Parses one completion."""

    def __init__(self, tool_format: ToolFormat, xml: XmlTags, *, tools: Sequence[ToolDefinition]) -> None:
        """The arguments are those of `ToolParser`, and the format's `xml`."""
        self._xml = xml
        self._value_end = xml.value_end.lstrip()
        begun = (end[:size] for end in (xml.value_end, self._value_end) for size in range(1, len(end)))
        self._begun = tuple(sorted(begun, key=len, reverse=True))
        """Beginnings of the end of a value, longest first."""
        self._tools = {tool.name: tool for tool in tools}
        self._parameters: dict[str, dict[str, XmlParameter]] = {}
        """Parameters of the tools that were called: schemas may be long, and there may be many parsers."""
        openings = (tool_format.opening, *filter(None, (xml.function,)))
        super().__init__(tool_format, tools=tools, openings=openings)

    def _read_calls(self, opening: str) -> Reader[None]:
        """Reads one call. Releases what is not a call."""
        is_open = False
        try:
            if opening != self._xml.function:
                yield from self._skip_space()
                yield from self._expect_text(self._xml.function)
            name = yield from self._read_tool_name()
            parameters = self._parameters_of(name)
            self._open_call(name)
            self._bare = False  # a further call begins with a tag
            is_open = True
            yield from self._read_parameters(parameters)
            self._withheld.clear()
        except NotACallError:
            if is_open and not self._ended:
                self._emit("}")
            if not (is_open and "".join(self._withheld).isspace()):
                self._release_failed("" if is_open else opening)

    def _read_tool_name(self) -> Reader[str]:
        """Reads the name of a tool that was offered."""
        if end := self._xml.name_end.rstrip():
            name = yield from self._read_name_to(end)
        else:  # up to a line break or the next tag
            name = ""
            while (char := (yield from self._peek())) and any(each.startswith(name + char) for each in self._names):
                name += self._withhold()
            if not char.isspace() and char != self._xml.parameter[0]:
                raise NotACallError
        if name not in self._names:
            raise NotACallError
        return name

    def _parameters_of(self, name: str) -> dict[str, XmlParameter]:
        if name not in self._parameters:
            self._parameters[name] = {each.name: each for each in xml_parameters(self._tools[name]) or ()}
        return self._parameters[name]

    def _read_parameters(self, parameters: dict[str, XmlParameter]) -> Reader[None]:
        self._emit("{")
        separator = ""
        before_value, *others = self._xml.value.split()
        while (yield from self._read_one_of((self._xml.parameter, self._xml.call_end))) == self._xml.parameter:
            name = yield from self._read_name_to(before_value)
            for tag in others:
                yield from self._skip_space()
                yield from self._expect_text(tag)
            self._withheld.clear()
            self._emit(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
            separator = ", "
            default = XmlParameter(name=name, schema={"type": "string"}, is_required=False)
            yield from self._read_value(parameters.get(name, default))
        self._emit("}")

    def _read_value(self, parameter: XmlParameter) -> Reader[None]:
        """Reads a value and its closing tag, and emits it as JSON; of strings as much as is certain."""
        if self._xml.value.endswith("\n") and (yield from self._peek()) == "\n":
            self._read()
        if parameter.is_text:
            self._emit('"')
        text = ""
        while not text.endswith(self._value_end):
            if not (yield from self._peek()):
                raise NotACallError
            text += self._read()
            if parameter.is_text and not text.endswith(self._value_end):
                num_kept = self._num_begun(text)
                self._emit(escaped(text[: len(text) - num_kept]))
                text = text[len(text) - num_kept :]
        value = text.removesuffix(self._value_end)
        if self._value_end != self._xml.value_end:
            value = value.removesuffix("\n")
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

    def _num_begun(self, text: str) -> int:
        """Returns how many characters at the end of a value could begin its closing tag."""
        if not text.endswith(self._begun):
            return 0
        return next(len(begun) for begun in self._begun if text.endswith(begun))
