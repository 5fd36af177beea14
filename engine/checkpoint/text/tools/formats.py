"""Table of the formats in which models write tool calls.

A call is a JSON object, a name and an element for each argument (`xml`), a name, a tag and arguments
(`arguments_tag`), a name and arguments with quotes of their own (`quote`), or as Python writes it (`is_python`). What
surrounds it differs.
"""

import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace

from glimpse.engine.checkpoint.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlTags:
    """How a model writes calls whose arguments are elements: `function NAME name_end`, `parameter NAME value VALUE
    value_end` for each argument, and `call_end`.

    White space may vary. A line break at the end of `value` or the beginning of `value_end` belongs to the tags.
    """

    function: str
    """Begins a call even without the opening tag; may be empty."""
    name_end: str
    parameter: str
    value: str
    value_end: str
    call_end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a model writes tool calls: `opening before CALL between CALL … after`."""

    name: str
    """Value of --tool-call-parser."""
    template_markers: tuple[str, ...]
    """A chat template that contains one of these uses this format."""
    opening: str = ""
    """Tag before the calls; may be empty."""
    closing: str = ""
    """Tag after the calls; may be empty."""
    bare: bool = False
    """A completion that begins with a call needs no opening tag."""
    before: str = ""
    """Text between the opening tag and the first call. White space may vary, here and in the next two fields."""
    between: str = ""
    """Text between two calls."""
    after: str = ""
    """Text after the last call."""
    arguments_key: str = "arguments"
    """JSON member that holds a call's arguments."""
    short_ids: bool = False
    """The chat template accepts only call ids of nine letters and digits."""
    xml: XmlTags | None = None
    """A call has an element for each argument, whose value is text, not JSON, if it is a string. None: it has not."""
    arguments_tag: str = ""
    """A call is its name, this tag and its arguments, a JSON object; empty: it is not."""
    id_tag: str = ""
    """Tag before an id that models may write between the name and `arguments_tag`."""
    quote: str = ""
    """A call is `call:NAME{KEY:VALUE,…}`: JSON whose strings have this tag on both sides, and whose names are bare;
    empty: it is not."""

    is_python: bool = False
    """A call is `NAME(KEY=VALUE, …)`."""

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the format that are not empty."""
        return tuple(tag for tag in (self.opening, self.closing, self.arguments_tag, self.id_tag, self.quote) if tag)


MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    template_markers=("[ARGS]",),
    opening="[TOOL_CALLS]",
    between="[TOOL_CALLS]",
    short_ids=True,
    arguments_tag="[ARGS]",
    id_tag="[CALL_ID]",
)
"""Mistral since its tokenizers of version 11, such as Magistral and Devstral."""
MISTRAL = ToolFormat(
    name="mistral",
    template_markers=("[TOOL_CALLS]",),
    opening="[TOOL_CALLS]",
    before=" [",
    between=", ",
    after="]",
    short_ids=True,
)
HERMES = ToolFormat(
    name="hermes",
    template_markers=("<tool_call>",),
    opening="<tool_call>",
    closing="</tool_call>",
    before="\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
)
"""Hermes; also used by Qwen models."""
QWEN3_CODER = replace(
    HERMES,
    name="qwen3_coder",
    template_markers=("<parameter=",),
    xml=XmlTags(
        function="<function=",
        name_end=">\n",
        parameter="<parameter=",
        value=">\n",
        value_end="\n</parameter>",
        call_end="</function>",
    ),
)
"""Qwen3-Coder and Qwen3.5: what surrounds calls is that of Hermes. Models may leave out the opening tag."""
GLM45 = ToolFormat(
    name="glm45",
    template_markers=("<arg_key>",),
    opening="<tool_call>",
    closing="</tool_call>",
    between="\n<tool_call>",
    xml=XmlTags(
        function="",
        name_end="\n",
        parameter="<arg_key>",
        value="</arg_key>\n<arg_value>",
        value_end="</arg_value>",
        call_end="</tool_call>",
    ),
)
"""GLM-4.5 and later, such as GLM-4.6V."""
PHI4_MINI = ToolFormat(
    name="phi4_mini",
    template_markers=("<|tool_call|>", "<|tool|>"),
    opening="<|tool_call|>",
    closing="<|/tool_call|>",
    before="[",
    between=", ",
    after="]<|/tool_call|>",
)
"""Phi-4-mini."""
GEMMA4 = ToolFormat(
    name="gemma4",
    template_markers=("<|tool_call>",),
    opening="<|tool_call>",
    closing="<tool_call|>",
    between="<tool_call|><|tool_call>",
    after="<tool_call|>",
    quote='<|"|>',
)
"""Gemma 4."""
LFM2 = ToolFormat(
    name="lfm2",
    template_markers=("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: "),
    opening="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    before="[",
    between=", ",
    after="]<|tool_call_end|>",
    is_python=True,
)
"""LFM2 and LFM2.5."""
LLAMA = ToolFormat(
    name="llama",
    template_markers=("<|python_tag|>", '"parameters":'),
    opening="<|python_tag|>",
    bare=True,
    between="; ",
    arguments_key="parameters",
)
"""Llama 3."""
JSON = ToolFormat(name="json", template_markers=(), bare=True, between="\n")
"""Only calls, without tags: for templates that use none of the other formats."""

FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (MISTRAL_ARGS, MISTRAL, QWEN3_CODER, GLM45, HERMES, PHI4_MINI, GEMMA4, LFM2, LLAMA, JSON)
}
"""Name → format. Templates of a format may contain the markers of those after it."""


def find_format(template: str, name: str = "auto") -> ToolFormat | None:
    """Returns the format by name, or detects it in a chat template; None if the template does not support tools.

    Args:
        name: One of `FORMATS`, or "auto" to detect the format.

    Raises:
        ValueError: there is no format with this name.
    """
    if name != "auto":
        if name not in FORMATS:
            raise ValueError(f"expected a tool call format of auto, {', '.join(FORMATS)}, got {name!r}")
        return FORMATS[name]
    if "tools" not in template:
        return None
    return next((each for each in FORMATS.values() if any(mark in template for mark in each.template_markers)), JSON)


def tag_ids(tool_format: ToolFormat, tokenizer: Tokenizer) -> Mapping[str, int]:
    """Returns tag → token id for the format's tags that are special tokens, which decoding skips by default."""
    special = {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}
    return {tag: special[tag] for tag in tool_format.tags if tag in special}


def new_tool_call_id(tool_format: ToolFormat) -> str:
    """Returns a random id that the format's chat template accepts."""
    letters = string.ascii_letters + string.digits
    if tool_format.short_ids:
        return "".join(secrets.choice(letters) for _ in range(9))
    return "call_" + "".join(secrets.choice(letters) for _ in range(24))
