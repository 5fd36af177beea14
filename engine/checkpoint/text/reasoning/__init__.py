"""Reasoning in generated text: formats as data (`formats`), a streaming parser (`parser`), a counter (`meter`)."""

from glimpse.engine.checkpoint.text.reasoning.formats import REASONING_FORMATS, ReasoningFormat, find_reasoning_format
from glimpse.engine.checkpoint.text.reasoning.meter import ReasoningMeter
from glimpse.engine.checkpoint.text.reasoning.parser import ReasoningParser, ReasoningSplit

__all__ = [
    "REASONING_FORMATS",
    "ReasoningFormat",
    "ReasoningMeter",
    "ReasoningParser",
    "ReasoningSplit",
    "find_reasoning_format",
]
