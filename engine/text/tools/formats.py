"""The formats in which models write calls of tools, as a table. A call is a JSON object everywhere; the rest differs.

Knows neither how a format is read nor how it is enforced.
"""

import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass

from glimpse.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a model writes calls: `opening before CALL between CALL … after`."""

    name: str
    """What an operator calls it."""
    signs: tuple[str, ...]
    """A chat template with one of these in it teaches this format."""
    opening: str = ""
    """The tag that announces calls; empty where there is none."""
    closing: str = ""
    """The tag that ends them; empty where there is none."""
    bare: bool = False
    """An answer that begins with a call needs no opening."""
    before: str = ""
    """Between the opening and the first call; white space in it may vary, as in the next two."""
    between: str = ""
    """Between two calls."""
    after: str = ""
    """After the last call."""
    arguments_key: str = "arguments"
    """The member that holds a call's arguments."""
    short_ids: bool = False
    """The chat template accepts only ids of nine letters and digits."""


MISTRAL = ToolFormat(
    name="mistral",
    signs=("[TOOL_CALLS]",),
    opening="[TOOL_CALLS]",
    before=" [",
    between=", ",
    after="]",
    short_ids=True,
)
HERMES = ToolFormat(
    name="hermes",
    signs=("<tool_call>",),
    opening="<tool_call>",
    closing="</tool_call>",
    before="\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
)
"""Hermes's, which Qwen's models write too."""
LLAMA = ToolFormat(
    name="llama",
    signs=("<|python_tag|>", '"parameters":'),
    opening="<|python_tag|>",
    bare=True,
    between="; ",
    arguments_key="parameters",
)
"""Llama 3's."""
JSON = ToolFormat(name="json", signs=(), bare=True, between="\n")
"""Calls and nothing else: for templates that teach none of the others."""

FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in (MISTRAL, HERMES, LLAMA, JSON)}
"""By their names."""


def find_format(template: str, name: str = "auto") -> ToolFormat | None:
    """The format that a chat template teaches, or the one with this name; None where a template knows no tools.

    Args:
        template: The template's text.
        name: One of `FORMATS`, or "auto".

    Raises:
        ValueError: no format has this name.
    """
    if name != "auto":
        if name not in FORMATS:
            raise ValueError(f"there is no tool format {name!r}; there are auto, {', '.join(FORMATS)}")
        return FORMATS[name]
    if "tools" not in template:
        return None
    return next((each for each in FORMATS.values() if any(sign in template for sign in each.signs)), JSON)


def tag_ids(tool_format: ToolFormat, tokenizer: Tokenizer) -> Mapping[str, int]:
    """The format's tags that are special tokens, which are no text unless they are shown: tag → token id."""
    special = {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}
    return {tag: special[tag] for tag in (tool_format.opening, tool_format.closing) if tag in special}


def new_tool_call_id(tool_format: ToolFormat) -> str:
    """An id for a call, as the format's chat template accepts it."""
    letters = string.ascii_letters + string.digits
    if tool_format.short_ids:
        return "".join(secrets.choice(letters) for _ in range(9))
    return "call_" + "".join(secrets.choice(letters) for _ in range(24))
