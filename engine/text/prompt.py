"""Builds prompts: conversations, texts or token ids, and media, to token ids with media placeholders expanded.

Of media it needs only their kind and number of tokens; their content is left to `media/` and the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.model_config import ModelConfig
from glimpse.engine.text.conversation import ChatMessage, TemplateOptions, ToolDefinition, num_characters
from glimpse.engine.text.special_token_escaping import SpecialTokenEscaper, SpecialTokenPatterns
from glimpse.engine.text.template import ChatTemplate, TemplateError, load_chat_template
from glimpse.engine.text.template_values import append_end_mark, escape_json, message_value, tool_value
from glimpse.engine.text.tokenizer import Tokenizer, load_tokenizer
from glimpse.media.kind import MediaKind

DEFAULT_OPTIONS = TemplateOptions()


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
    """A prompt for the engine."""

    token_ids: list[int]
    starts: list[int]
    """Index of each medium's first placeholder token, in the order of the media."""


class PlaceholderError(TemplateError):
    """A prompt that does not have one placeholder for each medium."""

    def __init__(self, kind: MediaKind, *, num_media: int, num_placeholders: int, missing: int | None) -> None:
        message = f"expected one placeholder for each {kind} input, got {num_placeholders} for {num_media}"
        if num_placeholders < num_media:
            message += "; many chat templates show media only in user messages"
        super().__init__(message)
        self.missing = missing
        """Index of a medium that has no placeholder; None if it is not known which one has none."""


class PromptBuilder:
    """Builds prompts for one checkpoint."""

    def __init__(
        self, *, tokenizer: Tokenizer, template: ChatTemplate, placeholder_ids: Mapping[MediaKind, int]
    ) -> None:
        """
        Args:
            tokenizer: The checkpoint's.
            template: The checkpoint's, or the one that overrides it.
            placeholder_ids: Placeholder token of each kind of media that the model supports.
        """
        self.tokenizer = tokenizer
        self._template = template
        self._placeholder_ids = placeholder_ids
        self._patterns = SpecialTokenPatterns(tokenizer.added_texts)

    @property
    def template_source(self) -> str:
        """Source of the chat template."""
        return self._template.source

    def chat(
        self,
        messages: Sequence[ChatMessage],
        media: Sequence[PromptMedium],
        options: TemplateOptions = DEFAULT_OPTIONS,
        *,
        max_tokens: int | None = None,
    ) -> Prompt:
        """Builds the prompt of a conversation. Client text is never read as a special token.

        Args:
            messages: The conversation.
            media: The media of the messages' slots, in order.
            options: Options of the template.
            max_tokens: A longer prompt may be refused before it is encoded. Default: no limit.

        Raises:
            EngineError: PROMPT_TOO_LONG.
            TemplateError: the template refuses the conversation, does not support a part of it, or does not render
                exactly one placeholder for each medium.
        """
        self._check_template_supports(messages, options.tools)
        escaper = self._patterns.new_escaper()
        try:
            values = [message_value(message, self._role(message), escaper) for message in messages]
            if options.continue_final_message:
                values[-1] = _with_end_mark(messages[-1], values[-1], escaper)
            rendered = self._template.render(
                values,
                add_generation_prompt=options.add_generation_prompt,
                tools=[tool_value(tool, escaper) for tool in options.tools] or None,
                variables=escape_json(dict(options.template_kwargs), escaper),
            )
        except RecursionError as error:
            raise TemplateError("tools, arguments or template variables are nested too deeply") from error
        if options.continue_final_message:
            rendered = _up_to_end_mark(rendered, escaper)
        self._check_length(rendered, max_tokens)
        return self.expand(self._encode(rendered, escaper), media)

    def check_size(self, messages: Sequence[ChatMessage], options: TemplateOptions, *, max_tokens: int) -> None:
        """Refuses conversations that are certainly too long by the size of their texts alone.

        Raises:
            EngineError: PROMPT_TOO_LONG.
        """
        if num_characters(messages, options.tools) > max_tokens * self.tokenizer.max_characters_per_token:
            raise _too_long(max_tokens)

    def text(self, text: str, media: Sequence[PromptMedium], *, max_tokens: int | None = None) -> Prompt:
        """Builds the prompt of a raw text, in which special tokens are recognized and each medium has one placeholder.

        It starts with the tokens that start each text for this tokenizer, such as `<s>`.

        Raises:
            EngineError: PROMPT_TOO_LONG; a text of more than `max_tokens` tokens may be refused before it is encoded.
            TemplateError: the text does not have exactly one placeholder for each medium.
        """
        self._check_length(text, max_tokens)
        return self.expand(self.tokenizer.with_prefix(self.tokenizer.encode(text)), media)

    def expand(self, token_ids: Sequence[int], media: Sequence[PromptMedium]) -> Prompt:
        """Builds a prompt from token ids: repeats the one placeholder of each medium `num_tokens` times.

        Raises:
            TemplateError: there is not exactly one placeholder for each medium.
        """
        waiting = self._indices_by_placeholder(media)
        self._check_placeholders(token_ids, waiting)
        expanded: list[int] = []
        starts = [-1] * len(media)
        for token_id in token_ids:
            indices = waiting.get(token_id)
            if indices is None:
                expanded.append(token_id)
            else:
                index = indices.pop(0)
                starts[index] = len(expanded)
                expanded += [token_id] * media[index].num_tokens
        return Prompt(token_ids=expanded, starts=starts)

    def _check_length(self, text: str, max_tokens: int | None) -> None:
        if max_tokens is not None and self.tokenizer.exceeds(text, max_tokens):
            raise _too_long(max_tokens)

    def _check_placeholders(self, token_ids: Sequence[int], waiting: Mapping[int, Sequence[int]]) -> None:
        for kind, placeholder_id in self._placeholder_ids.items():
            indices, num_placeholders = waiting[placeholder_id], token_ids.count(placeholder_id)
            if num_placeholders != len(indices):
                missing = indices[0] if indices and not num_placeholders else None
                raise PlaceholderError(kind, num_media=len(indices), num_placeholders=num_placeholders, missing=missing)

    def _indices_by_placeholder(self, media: Sequence[PromptMedium]) -> dict[int, list[int]]:
        """Returns placeholder id → indices of the media it stands for."""
        for medium in media:
            if medium.kind not in self._placeholder_ids:
                raise TemplateError(f"the model does not support {medium.kind} input")
        return {
            placeholder_id: [index for index, medium in enumerate(media) if medium.kind == kind]
            for kind, placeholder_id in self._placeholder_ids.items()
        }

    def _role(self, message: ChatMessage) -> str:
        unknown = message.role == "developer" and not self._template.supports_developer_role
        return "system" if unknown else message.role

    def _check_template_supports(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> None:
        """Raises TemplateError for parts of a conversation that the template would silently leave out."""
        if tools and not self._template.supports_tools:
            raise TemplateError("the model's chat template does not support tools")
        if any(message.tool_calls for message in messages) and not self._template.supports_tool_calls:
            raise TemplateError("the model's chat template does not support tool calls")

    def _encode(self, rendered: str, escaper: SpecialTokenEscaper) -> list[int]:
        if not escaper:
            return self.tokenizer.encode(rendered)
        token_ids: list[int] = []
        for index, piece in enumerate(self.tokenizer.split(rendered)):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += self.tokenizer.encode_plain(escaper.unescape(piece), is_first=index == 0)
        return token_ids


def _with_end_mark(message: ChatMessage, value: dict[str, Any], escaper: SpecialTokenEscaper) -> dict[str, Any]:
    """Appends the end mark to an assistant's message."""
    if message.role != "assistant" or message.tool_calls:
        raise TemplateError("only an assistant message without tool calls can be continued")
    content = append_end_mark(value["content"], escaper)
    if content is None:
        raise TemplateError("a message without text cannot be continued")
    return value | {"content": content}


def _up_to_end_mark(rendered: str, escaper: SpecialTokenEscaper) -> str:
    before = escaper.up_to_end_mark(rendered)
    if before is None:
        raise TemplateError("the chat template does not render the last message, which is to be continued")
    return before


def _too_long(max_tokens: int) -> EngineError:
    return EngineError(
        EngineErrorCode.PROMPT_TOO_LONG,
        f"the prompt has more than {max_tokens} tokens, "
        f"and the model's context window is {max_tokens} tokens (prompt and answer together)",
    )


def load_prompt_builder(path: Path, model: ModelConfig, chat_template: str | None = None) -> PromptBuilder:
    """Loads the tokenizer and the chat template of a checkpoint.

    Args:
        path: Folder of the checkpoint.
        model: The checkpoint's configuration.
        chat_template: Path of a template that overrides the checkpoint's.

    Raises:
        CheckpointError: the tokenizer or the chat template is missing or cannot be read.
    """
    return PromptBuilder(
        tokenizer=load_tokenizer(path),
        template=load_chat_template(path, model.architecture, chat_template),
        placeholder_ids={MediaKind(kind): token_id for kind, token_id in model.placeholder_ids.items()},
    )
