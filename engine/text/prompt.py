"""From a conversation and its media to the token ids of a prompt.

Knows of a medium only its kind and how many tokens it takes: what it shows is the affair of `media/` and the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from glimpse.engine.model_config import ModelConfig
from glimpse.engine.text.conversation import ChatMessage, ToolDefinition
from glimpse.engine.text.special_token_escaping import SpecialTokenEscaper, SpecialTokenPatterns
from glimpse.engine.text.template import ChatTemplate, TemplateError, load_chat_template
from glimpse.engine.text.template_values import message_value, protected, tool_value, with_end_mark
from glimpse.engine.text.tokenizer import Tokenizer, load_tokenizer
from glimpse.media.kind import MediaKind


class PromptMedium(Protocol):
    """A medium, as far as a prompt depends on it."""

    @property
    def kind(self) -> MediaKind: ...
    @property
    def num_tokens(self) -> int:
        """Number of its placeholder tokens, at least 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the engine takes it."""

    token_ids: list[int]
    starts: list[int]
    """For each medium, in the order given, the index of its first placeholder token."""


class PromptBuilder:
    """Makes prompts for one checkpoint."""

    def __init__(
        self, *, tokenizer: Tokenizer, template: ChatTemplate, placeholder_ids: Mapping[MediaKind, int]
    ) -> None:
        """
        Args:
            tokenizer: The checkpoint's.
            template: The checkpoint's, or one in its place.
            placeholder_ids: For each kind of media that the model understands the token that stands for it.
        """
        self.tokenizer = tokenizer
        self._template = template
        self._placeholder_ids = placeholder_ids
        self._lookalikes = SpecialTokenPatterns(tokenizer.added_texts)

    @property
    def template_source(self) -> str:
        """The chat template's text."""
        return self._template.source

    def chat(
        self,
        messages: Sequence[ChatMessage],
        media: Sequence[PromptMedium],
        *,
        tools: Sequence[ToolDefinition] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt of a conversation. Nothing in a client's texts is read as a special token.

        Args:
            messages: The conversation.
            media: What stands in the messages' slots, in their order.
            tools: What the model may call.
            add_generation_prompt: The prompt ends with the beginning of an answer.
            continue_final_message: The prompt ends within the last message, which is an assistant's, after its text;
                `add_generation_prompt` makes no difference then.
            template_kwargs: Further variables of the template, as JSON has them.

        Raises:
            TemplateError: the template refuses the conversation or has no place for a part of it, or the media are not
                those that the template shows.
        """
        self._check_template_can_show(messages, tools)
        marks = self._lookalikes.marks()
        try:
            values = [message_value(message, self._role(message), marks) for message in messages]
            if continue_final_message:
                values[-1] = _left_open(messages[-1], values[-1], marks)
            rendered = self._template.render(
                values,
                add_generation_prompt=add_generation_prompt,
                tools=[tool_value(tool, marks) for tool in tools] or None,
                variables=protected(dict(template_kwargs or {}), marks),
            )
        except RecursionError as error:
            raise TemplateError("tools, arguments or template variables are nested too deeply") from error
        if continue_final_message:
            rendered = _up_to_end_mark(rendered, marks)
        return self.expand(self._encode(rendered, marks), media)

    def text(self, text: str, media: Sequence[PromptMedium]) -> Prompt:
        """The prompt of a text that is the prompt already: special tokens in it are special, one placeholder a medium.

        Raises:
            TemplateError: the placeholders in the text are not one for each medium.
        """
        return self.expand(self.tokenizer.encode(text), media)

    def expand(self, token_ids: Sequence[int], media: Sequence[PromptMedium]) -> Prompt:
        """A prompt of token ids in which each medium has one placeholder: it becomes as many as the medium takes.

        Raises:
            TemplateError: the placeholders are not one for each medium.
        """
        waiting = self._indices_by_placeholder(media)
        expanded: list[int] = []
        starts = [-1] * len(media)
        for token_id in token_ids:
            indices = waiting.get(token_id)
            if indices is None:
                expanded.append(token_id)
                continue
            if not indices:
                raise TemplateError("the prompt has more media placeholders than media were given")
            index = indices.pop(0)
            starts[index] = len(expanded)
            expanded += [token_id] * media[index].num_tokens
        if any(waiting.values()):
            raise TemplateError("the prompt has fewer media placeholders than media were given")
        return Prompt(token_ids=expanded, starts=starts)

    def _indices_by_placeholder(self, media: Sequence[PromptMedium]) -> dict[int, list[int]]:
        """Placeholder id → indices of the media for which it stands."""
        for medium in media:
            if medium.kind not in self._placeholder_ids:
                raise TemplateError(f"the model does not understand {medium.kind} input")
        return {
            placeholder_id: [index for index, medium in enumerate(media) if medium.kind == kind]
            for kind, placeholder_id in self._placeholder_ids.items()
        }

    def _role(self, message: ChatMessage) -> str:
        unknown = message.role == "developer" and not self._template.supports_developer_role
        return "system" if unknown else message.role

    def _check_template_can_show(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> None:
        """A template leaves out what it does not know, without a word."""
        if tools and not self._template.supports_tools:
            raise TemplateError("the model's chat template has no place for tools")
        if any(message.tool_calls for message in messages) and not self._template.supports_tool_calls:
            raise TemplateError("the model's chat template has no place for calls of tools")

    def _encode(self, rendered: str, marks: SpecialTokenEscaper) -> list[int]:
        if not marks:
            return self.tokenizer.encode(rendered)
        token_ids: list[int] = []
        for piece in self.tokenizer.split(rendered):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += self.tokenizer.encode_plain(marks.restore(piece))
        return token_ids


def _left_open(message: ChatMessage, value: dict[str, Any], marks: SpecialTokenEscaper) -> dict[str, Any]:
    """An assistant's message with the mark of its end."""
    if message.role != "assistant" or message.tool_calls:
        raise TemplateError("only an assistant's message without calls of tools can be continued")
    content = with_end_mark(value["content"], marks)
    if content is None:
        raise TemplateError("a message without text cannot be continued")
    return value | {"content": content}


def _up_to_end_mark(rendered: str, marks: SpecialTokenEscaper) -> str:
    before = marks.before_end(rendered)
    if before is None:
        raise TemplateError("the chat template does not show the last message, which is to be continued")
    return before


def load_prompt_builder(path: Path, model: ModelConfig, chat_template: str | None = None) -> PromptBuilder:
    """The prompt builder of the checkpoint in the folder `path`.

    Args:
        path: Folder of the checkpoint.
        model: Its configuration.
        chat_template: A file whose template is taken instead of the checkpoint's.

    Raises:
        CheckpointError: there is no tokenizer or no chat template, or one that cannot be read.
    """
    return PromptBuilder(
        tokenizer=load_tokenizer(path),
        template=load_chat_template(path, model.architecture, chat_template),
        placeholder_ids={MediaKind(kind): token_id for kind, token_id in model.placeholder_ids.items()},
    )
