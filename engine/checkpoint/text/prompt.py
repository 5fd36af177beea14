"""Builds prompts: conversations, texts or token ids, and media, to token ids with media placeholders expanded.

Of media it needs only their token layouts; their content is left to `media/` and the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.families.token_layout import TokenLayout
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    TemplateOptions,
    num_characters,
)
from glimpse.engine.checkpoint.text.edge_texts import with_edge_texts
from glimpse.engine.checkpoint.text.slots import SlotWriter, make_slots
from glimpse.engine.checkpoint.text.special_token_escaping import SpecialTokenEscaper, SpecialTokenPatterns
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates, ToolTemplate, load_chat_templates
from glimpse.engine.checkpoint.text.template_values import (
    append_end_mark,
    escape_json,
    message_value,
    tool_value,
    with_system_tools,
)
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer, load_tokenizer
from glimpse.engine.errors import EngineError, EngineErrorCode, TemplateError
from glimpse.media.kind import MediaKind

DEFAULT_OPTIONS = TemplateOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt for the engine."""

    token_ids: list[int]
    starts: list[int]
    """Index of the first token of each medium's layout, in the order of the media."""


class PromptBuilder:
    """Builds prompts for one checkpoint."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        templates: ChatTemplates,
        placeholder_ids: Mapping[MediaKind, int],
        run_ids: Mapping[MediaKind, int] | None = None,
        slot_texts: Mapping[MediaKind, str] | None = None,
        slots_in_lines: bool = True,
        numbered_tags: bool = False,
        query_affixes: tuple[str, str] = ("", ""),
        asking_tokens: frozenset[str] = frozenset(),
    ) -> None:
        """
        Args:
            placeholder_ids: The token that stands for each kind of media that the model supports in a rendered prompt.
            run_ids: The token of the runs in each kind's layouts. Default: the same.
            query_affixes: Texts before and after each whole text without media.
            asking_tokens: Special tokens that client text may spell.
        """
        self.tokenizer = tokenizer
        self.templates = templates
        self._placeholder_ids = placeholder_ids
        self._query_affixes = query_affixes
        self._run_ids = run_ids or placeholder_ids
        self._placeholders = {kind: tokenizer.token_text(token_id) for kind, token_id in placeholder_ids.items()}
        self._slots = make_slots(
            self._placeholders, slot_texts or {}, in_lines=slots_in_lines, numbered_tags=numbered_tags
        )
        self._tags = self._slots.tags
        tag_starts = () if self._tags is None else (self._tags.start,)
        escaped = (text for text in tokenizer.added_texts if text not in asking_tokens)
        self._patterns = SpecialTokenPatterns((*escaped, *tag_starts))

    def chat(
        self,
        messages: Sequence[ChatMessage],
        media: Sequence[TokenLayout],
        options: TemplateOptions = DEFAULT_OPTIONS,
        *,
        max_tokens: int | None = None,
    ) -> Prompt:
        """Builds the prompt of a conversation. Client text is never read as a special token, but for `asking_tokens`.

        If the model supports media, it starts with the tokens that start each text for this tokenizer, such as `<s>`.

        Args:
            media: The layouts of the media in the messages' slots, in order.
            max_tokens: A longer prompt may be refused before it is encoded. Default: no limit.

        Raises:
            EngineError: PROMPT_TOO_LONG.
            TemplateError: the template refuses the conversation, does not support a part of it, or does not render
                exactly one placeholder for each medium.
        """
        template = self.templates.choose(messages, options.tools)
        escaper, slots = self._patterns.new_escaper(), SlotWriter(self._slots)
        try:
            values = [
                message_value(
                    message,
                    _role(message, template),
                    escaper,
                    as_parts=template.needs_parts,
                    slots=slots if self._slots.are_written(message, template) else None,
                )
                for message in messages
            ]
            if options.continue_final_message:
                values[-1] = _with_end_mark(messages[-1], values[-1], escaper)
            tools = [tool_value(tool, escaper) for tool in options.tools]
            if tools and template.reads_system_tools:
                values = with_system_tools(values, tools)
            rendered = template.render(
                values,
                add_generation_prompt=options.add_generation_prompt,
                tools=tools or None,
                variables=escape_json(dict(options.template_kwargs), escaper),
            )
        except RecursionError as error:
            raise TemplateError("tools, arguments or template variables are nested too deeply") from error
        if options.continue_final_message:
            rendered = _up_to_end_mark(rendered, escaper)
        rendered = self._with_edge_texts(rendered, media)
        self._check_length(rendered, max_tokens)
        # As transformers' processors, which models with media have, but not its tokenizers alone.
        token_ids = self._encode(rendered, escaper, with_prefix=bool(self._placeholder_ids))
        return self._expand(token_ids, media, is_chat=True)

    def check_size(self, messages: Sequence[ChatMessage], options: TemplateOptions, *, max_tokens: int) -> None:
        """Refuses conversations that are certainly too long by the size of their texts alone.

        Raises:
            EngineError: PROMPT_TOO_LONG.
        """
        if num_characters(messages, options.tools) > max_tokens * self.tokenizer.max_characters_per_token:
            raise _too_long(max_tokens)

    def text(self, text: str, media: Sequence[TokenLayout], *, max_tokens: int | None = None) -> Prompt:
        """Builds the prompt of a raw text, in which special tokens are recognized and each medium has one placeholder.

        It starts with the tokens that start each text for this tokenizer, such as `<s>`.

        Raises:
            EngineError: PROMPT_TOO_LONG; a text of more than `max_tokens` tokens may be refused before it is encoded.
            TemplateError: the text does not have exactly one placeholder for each medium.
        """
        text = self._with_edge_texts(text, media)
        self._check_length(text, max_tokens)
        return self._expand(self._encode(text), media)

    def whole_text(
        self,
        text: str,
        media: Sequence[TokenLayout],
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
    ) -> Prompt:
        """Encodes a text that nothing follows: like `text`, but with the tokens that end each text.

        Args:
            media: Media of the text's placeholders, in order.
            add_special_tokens: False: neither the tokens that start each text nor those that end it are added, nor
                what makes it a query.
        """
        if add_special_tokens and not media:
            text = text.join(self._query_affixes)
        self._check_length(text, max_tokens)
        token_ids = self._encode(text, with_prefix=add_special_tokens)
        if add_special_tokens:
            token_ids = self.tokenizer.with_suffix(token_ids)
        return self.expand(token_ids, media)

    def expand(self, token_ids: Sequence[int], media: Sequence[TokenLayout]) -> Prompt:
        """Builds a prompt from token ids: replaces the one placeholder of each medium, by kind in order, by its layout.

        Texts at the layouts' edges are encoded alone.

        Raises:
            TemplateError: there is not exactly one placeholder for each medium.
        """
        return self._expand(token_ids, media, edges=True)

    def _expand(
        self, token_ids: Sequence[int], media: Sequence[TokenLayout], *, edges: bool = False, is_chat: bool = False
    ) -> Prompt:
        waiting = self._indices_by_placeholder(media)
        self._check_placeholders(token_ids, waiting, is_chat=is_chat)
        expanded: list[int] = []
        starts = [-1] * len(media)
        end = 0  # of what is expanded in `token_ids`
        for place, token_id in enumerate(token_ids):
            if token_id not in waiting:
                continue
            index = waiting[token_id].pop(0)
            before, after = _wrapper(media[index], token_ids, place, start=end)
            expanded += token_ids[end : place - before]
            expanded += self.tokenizer.encode(media[index].leading) if edges else ()
            starts[index] = len(expanded)
            expanded += media[index].token_ids(self._run_ids[media[index].kind])
            expanded += self.tokenizer.encode(media[index].trailing) if edges else ()
            end = place + 1 + after
        return Prompt(token_ids=[*expanded, *token_ids[end:]], starts=starts)

    def _check_length(self, text: str, max_tokens: int | None) -> None:
        if max_tokens is not None and self.tokenizer.exceeds(text, max_tokens):
            raise _too_long(max_tokens)

    def _check_placeholders(
        self, token_ids: Sequence[int], waiting: Mapping[int, Sequence[int]], *, is_chat: bool
    ) -> None:
        for kind, placeholder_id in self._placeholder_ids.items():
            indices, num_placeholders = waiting[placeholder_id], token_ids.count(placeholder_id)
            if num_placeholders != len(indices):
                missing = indices[0] if indices and not num_placeholders else None
                raise self._slots.error(
                    kind,
                    num_media=len(indices),
                    num_placeholders=num_placeholders,
                    missing=missing,
                    is_chat=is_chat,
                )

    def _indices_by_placeholder(self, media: Sequence[TokenLayout]) -> dict[int, list[int]]:
        """Returns placeholder id → indices of the media it stands for."""
        for medium in media:
            if medium.kind not in self._placeholder_ids:
                raise TemplateError(f"the model does not support {medium.kind} input")
        return {
            placeholder_id: [index for index, medium in enumerate(media) if medium.kind == kind]
            for kind, placeholder_id in self._placeholder_ids.items()
        }

    def _with_edge_texts(self, rendered: str, media: Sequence[TokenLayout]) -> str:
        return with_edge_texts(rendered, media, self._placeholders, self._spell)

    def _spell(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.tokenizer.token_text, token_ids))

    def _encode(self, text: str, escaper: SpecialTokenEscaper | None = None, *, with_prefix: bool = True) -> list[int]:
        """Returns the token ids of a prompt, in which placeholders stand for media.

        Args:
            with_prefix: it starts with the tokens that start each text, and so does each text between media with
                numbered tags.
        """
        texts = [text] if self._tags is None else self._tags.split(text)
        token_ids: list[int] = []
        for index, each in enumerate(texts):
            token_ids += [self._placeholder_ids[MediaKind.IMAGE]] if index else ()
            own = self._encode_text(each, escaper)
            token_ids += self.tokenizer.with_prefix(own) if with_prefix else own
        return token_ids

    def _encode_text(self, text: str, escaper: SpecialTokenEscaper | None) -> list[int]:
        if not escaper:
            return self.tokenizer.encode(text)
        token_ids: list[int] = []
        for index, piece in enumerate(self.tokenizer.split(text)):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += self.tokenizer.encode_plain(escaper.unescape(piece), is_first=index == 0)
        return token_ids


def _role(message: ChatMessage, template: ChatTemplate) -> str:
    unknown = message.role == "developer" and not template.supports_developer_role
    return "system" if unknown else message.role


def _wrapper(layout: TokenLayout, token_ids: Sequence[int], place: int, *, start: int) -> tuple[int, int]:
    """Returns how many tokens before and after the placeholder at `place` a layout replaces, from `start` on."""
    before, after = len(layout.prefix), len(layout.suffix)
    found = place - before >= start and (
        tuple(token_ids[place - before : place]) == layout.prefix
        and tuple(token_ids[place + 1 : place + 1 + after]) == layout.suffix
    )
    return (before, after) if found else (0, 0)


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


def load_prompt_builder(
    path: Path, model: ModelConfig, chat_template: str | None = None, *, tool_template: ToolTemplate = "auto"
) -> PromptBuilder:
    """Loads the tokenizer and the chat template of a checkpoint.

    Args:
        chat_template: Path of a template that overrides the checkpoint's.

    Raises:
        CheckpointError: the tokenizer or the chat template is missing or cannot be read.
    """
    family = family_of(model)
    tokenizer = load_tokenizer(path, markers=model.placeholder_texts.values())
    run_ids = {MediaKind(kind): token_id for kind, token_id in model.placeholder_ids.items()}
    markers = {MediaKind(kind): tokenizer.added_id(text) for kind, text in model.placeholder_texts.items()}
    return PromptBuilder(
        tokenizer=tokenizer,
        templates=load_chat_templates(path, family, chat_template, tool_template=tool_template),
        placeholder_ids=run_ids | markers,
        run_ids=run_ids,
        slot_texts=family.slot_texts,
        slots_in_lines=family.slots_in_lines,
        numbered_tags=family.numbered_tags,
        query_affixes=family.query_affixes,
        asking_tokens=family.asking_tokens,
    )
