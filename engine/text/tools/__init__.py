"""Calls of tools in the text of an answer: the formats in which models write them, read and enforced.

Formats are data (`formats`). One state machine reads them all (`parser`); one function writes the grammars that enforce
them (`grammar`).
"""

from glimpse.engine.text.tools.call_grammar import tool_grammar
from glimpse.engine.text.tools.formats import FORMATS, ToolFormat, find_format, new_call_id, tag_ids
from glimpse.engine.text.tools.parser import ArgumentsOut, CallOpened, TextOut, ToolEvent, ToolParser

__all__ = [
    "FORMATS",
    "ArgumentsOut",
    "CallOpened",
    "TextOut",
    "ToolEvent",
    "ToolFormat",
    "ToolParser",
    "find_format",
    "new_call_id",
    "tag_ids",
    "tool_grammar",
]
