"""Table of the formats in which models write reasoning: a span between two tags at the start of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.sampling_params import ReasoningTags

_TAIL_TOKENS = 32
"""Tokens at the end of a prompt that are searched for tags: more than a tag and the white space after it take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How a model writes reasoning: `opening reasoning closing answer`."""

    name: str
    """Value of --reasoning-parser."""
    opening: str = "<think>"
    closing: str = "</think>"
    template_marker: str
    """A chat template that contains this and the closing tag uses this format."""
    answer: str = ""
    """See `ReasoningTags`."""
    starts_open: bool = False
    """An answer begins with reasoning even if neither prompt nor answer has the opening tag."""

    def tags_after(self, prompt_token_ids: list[int], tokenizer: Tokenizer) -> ReasoningTags | None:
        """Returns the tags of an answer that begins a message; None if the prompt has ended the reasoning already.

        Templates open the reasoning in the prompt if the model always reasons, and close it there if it must not.
        """
        tail = tokenizer.decode(prompt_token_ids[-_TAIL_TOKENS:], skip_special=False).rstrip()
        if tail.endswith(self.closing):
            return None
        return self._tags(tokenizer, is_open=self.starts_open or tail.endswith(self.opening))

    def tags_continuing(self, prompt_token_ids: list[int], tokenizer: Tokenizer) -> ReasoningTags | None:
        """Returns the tags of an answer that continues a message; None unless the message ends with the opening tag."""
        tail = tokenizer.decode(prompt_token_ids[-_TAIL_TOKENS:], skip_special=False).rstrip()
        return self._tags(tokenizer, is_open=True) if tail.endswith(self.opening) else None

    def _tags(self, tokenizer: Tokenizer, *, is_open: bool) -> ReasoningTags:
        special = ((tokenizer.token_text(token_id), token_id) for token_id in sorted(tokenizer.special_ids))
        tags = self.opening, self.closing
        return ReasoningTags(
            opening=self.opening,
            closing=self.closing,
            special_ids=tuple(each for each in special if any(tag.startswith(each[0]) for tag in tags)),
            is_open=is_open,
            answer=self.answer,
        )


DEEPSEEK_R1 = ReasoningFormat(name="deepseek_r1", template_marker="<｜Assistant｜>", starts_open=True)
"""DeepSeek-R1: some of its templates open the reasoning in the prompt, and the model may leave the tag out."""
GLM45 = ReasoningFormat(name="glm45", template_marker="[gMASK]", answer="<answer>")
"""GLM since GLM-4.1V, which writes `<answer>` after its reasoning. Its `</answer>` is an end token."""
QWEN3 = ReasoningFormat(name="qwen3", template_marker="")
"""Qwen3, and all other models that mark reasoning with `<think>`: the model or its template writes the opening tag."""
GEMMA4 = ReasoningFormat(name="gemma4", opening="<|channel>thought", closing="<channel|>", template_marker="")
"""Gemma 4: a channel of its own. Its template closes an empty one in the prompt unless reasoning is turned on."""

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {each.name: each for each in (DEEPSEEK_R1, GLM45, QWEN3, GEMMA4)}
"""Name → format."""


def find_reasoning_format(template: str, name: str = "auto", *, of_family: str = "") -> ReasoningFormat | None:
    """Returns the format by name, or detects it in a chat template; None if answers have no reasoning.

    Args:
        name: One of `REASONING_FORMATS`, "none", or "auto" to detect the format.
        of_family: Name of the format of a model whose template shows none.

    Raises:
        ValueError: there is no format with this name.
    """
    if name == "none":
        return None
    if name != "auto":
        if name not in REASONING_FORMATS:
            raise ValueError(f"expected a reasoning format of auto, none, {', '.join(REASONING_FORMATS)}, got {name!r}")
        return REASONING_FORMATS[name]
    formats = REASONING_FORMATS.values()
    found = (each for each in formats if each.closing in template and each.template_marker in template)
    return next(found, REASONING_FORMATS.get(of_family))
