"""Tool calls in generated text: formats as data (`formats`), one streaming parser (`parser`), one grammar writer
(`tool_call_grammar`)."""

from glimpse.engine.text.tools.formats import FORMATS, ToolFormat, find_format, new_tool_call_id, tag_ids
from glimpse.engine.text.tools.parser import TextEvent, ToolCallArguments, ToolCallStarted, ToolEvent, ToolParser
from glimpse.engine.text.tools.tool_call_grammar import tool_grammar

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
    "tag_ids",
    "tool_grammar",
]
