"""Tool calls in generated text: formats as data (`formats`), streaming parsers for calls in JSON (`parser`), in XML
(`xml_parser`), with tags (`tagged_parser`) and with quotes of their own (`quoted_parser`), grammar writers for them
(`tool_call_grammar`, `xml_call_grammar`, `quoted_call_grammar`)."""

from collections.abc import Sequence

from glimpse.engine.checkpoint.text.conversation import ToolDefinition
from glimpse.engine.checkpoint.text.tools.formats import FORMATS, ToolFormat, find_format, new_tool_call_id, tag_ids
from glimpse.engine.checkpoint.text.tools.parser import (
    TextEvent,
    ToolCallArguments,
    ToolCallStarted,
    ToolEvent,
    ToolParser,
)
from glimpse.engine.checkpoint.text.tools.python_parser import PythonToolParser
from glimpse.engine.checkpoint.text.tools.quoted_parser import QuotedToolParser
from glimpse.engine.checkpoint.text.tools.tagged_parser import TaggedToolParser
from glimpse.engine.checkpoint.text.tools.tool_call_grammar import tool_grammar, unenforced_in_calls
from glimpse.engine.checkpoint.text.tools.xml_parser import XmlToolParser

__all__ = [
    "FORMATS",
    "TextEvent",
    "ToolCallArguments",
    "ToolCallStarted",
    "ToolEvent",
    "ToolFormat",
    "ToolParser",
    "find_format",
    "new_tool_call_id",
    "new_tool_parser",
    "tag_ids",
    "tool_grammar",
    "unenforced_in_calls",
]


def new_tool_parser(tool_format: ToolFormat, *, tools: Sequence[ToolDefinition]) -> ToolParser:
    """Returns a parser of one completion; the arguments are those of `ToolParser`."""
    if tool_format.arguments_tag:
        return TaggedToolParser(tool_format, tools=tools)
    if tool_format.is_python:
        return PythonToolParser(tool_format, tools=tools)
    if tool_format.quote:
        return QuotedToolParser(tool_format, tools=tools)
    if tool_format.xml:
        return XmlToolParser(tool_format, tool_format.xml, tools=tools)
    return ToolParser(tool_format, tools=tools)
