"""Reasoning in generated text: formats as data (`formats`), a streaming parser and a counter (`parser`)."""

from glimpse.engine.checkpoint.text.reasoning.formats import REASONING_FORMATS, ReasoningFormat, find_reasoning_format
from glimpse.engine.checkpoint.text.reasoning.parser import ReasoningMeter, ReasoningParser, ReasoningSplit

__all__ = [
    "REASONING_FORMATS",
    "ReasoningFormat",
    "ReasoningMeter",
    "ReasoningParser",
    "ReasoningSplit",
    "find_reasoning_format",
]
