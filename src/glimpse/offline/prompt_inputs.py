"""Parses the prompts and conversations that callers of `LLM` pass, in vLLM's and OpenAI's formats.

Fields that are not supported are refused by name. Independent of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glimpse.engine.checkpoint.text.conversation import ROLES, ChatMessage, MediaSlot, TemplateOptions
from glimpse.media.inputs import MediumInput
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.media.media_defaults import apply_kwargs
from glimpse.offline.media.media_inputs import parse_media, parse_part
from glimpse.offline.tool_inputs import parse_tool_calls

_SPELLINGS = {"assistent": "assistant"}
"""DashInfer-VLM's name of a role."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt as token ids."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """A prompt as a conversation."""

    messages: tuple[ChatMessage, ...]
    options: TemplateOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfflineRequest:
    """A prompt and its media."""

    prompt: str | TokenIds | Messages
    """A string is used as the prompt without a chat template."""
    media: tuple[MediumInput, ...]
    """In prompt order."""
    field: str
    """The path of the request in error messages."""


def parse_prompt(prompt: object, field: str) -> OfflineRequest:
    """Parses a string, or a dict of `prompt` or `prompt_token_ids` and optionally the prompt's media.

    Raises:
        InputError: it is something else.
    """
    if isinstance(prompt, str):
        return OfflineRequest(prompt=prompt, media=(), field=field)
    known = ("prompt", "prompt_token_ids", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
    prompt_fields = known_fields(prompt, field, known=known)
    match prompt_fields:
        case {"prompt": str() as text, **rest} if "prompt_token_ids" not in rest:
            parsed: str | TokenIds = text
        case {"prompt_token_ids": Sequence() as token_ids, **rest} if "prompt" not in rest:
            if not all(isinstance(token_id, int) for token_id in token_ids):
                raise InputError(f"{field}.prompt_token_ids", "expected a list of integers")
            parsed = TokenIds(tuple(token_ids))
        case _:
            raise InputError(field, "expected either prompt, a string, or prompt_token_ids, a list of integers")
    media = parse_media(
        prompt_fields.get("multi_modal_data") or {}, prompt_fields.get("multi_modal_uuids") or {}, field
    )
    kwargs = prompt_fields.get("mm_processor_kwargs")
    return OfflineRequest(prompt=parsed, media=apply_kwargs(media, kwargs, f"{field}.mm_processor_kwargs"), field=field)


def parse_conversations(
    messages: Sequence[Mapping[str, object]] | Sequence[Sequence[Mapping[str, object]]], options: TemplateOptions
) -> list[OfflineRequest]:
    """Parses one conversation or several. Raises InputError."""
    if any(isinstance(message, Mapping) for message in messages):
        return [parse_conversation(messages, "", options)]
    return [parse_conversation(each, f"conversations[{index}]", options) for index, each in enumerate(messages)]


def parse_conversation(messages: object, field: str, options: TemplateOptions) -> OfflineRequest:
    """Parses messages in OpenAI's format.

    `field` is empty for a single conversation, so that error messages begin with `messages[0]`.

    Raises:
        InputError: a message is something else.
    """
    media: list[MediumInput] = []
    messages_field = f"{field}.messages" if field else "messages"
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError(messages_field, "expected a list of at least one message")
    parsed = tuple(
        _parse_message(message, f"{messages_field}[{index}]", media) for index, message in enumerate(messages)
    )
    return OfflineRequest(prompt=Messages(parsed, options), media=tuple(media), field=messages_field)


def _parse_message(message: object, field: str, media: list[MediumInput]) -> ChatMessage:
    if isinstance(message, Mapping):  # OpenAI's client dumps messages with members of None, as `refusal`
        message = {name: value for name, value in message.items() if value is not None}
    message_fields = known_fields(message, field, known=("role", "content", "name", "tool_calls", "tool_call_id"))
    role, content = message_fields.get("role"), message_fields.get("content")
    role = _SPELLINGS.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise InputError(f"{field}.role", f"expected one of {', '.join(ROLES)}, got {role!r}")
    for name in ("name", "tool_call_id"):
        if not isinstance(message_fields.get(name), str | None):
            raise InputError(f"{field}.{name}", f"expected a string, got {type(message_fields[name]).__name__}")
    calls = parse_tool_calls(message_fields.get("tool_calls"), f"{field}.tool_calls")
    if calls and role != "assistant":
        raise InputError(f"{field}.tool_calls", f"only assistant messages can have tool calls, got role {role!r}")
    if content is None and calls:
        content = ()
    return ChatMessage(
        role=role,
        content=_parse_content(content, f"{field}.content", media),
        name=message_fields.get("name"),
        tool_calls=calls,
        tool_call_id=message_fields.get("tool_call_id"),
    )


def _parse_content(content: object, field: str, media: list[MediumInput]) -> tuple[str | MediaSlot, ...]:
    """Returns texts and media slots; the media themselves are appended to `media`."""
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list | tuple):
        raise InputError(field, f"expected a string or a list of content parts, got {type(content).__name__}")
    return tuple(_parse_part(part, f"{field}[{index}]", media) for index, part in enumerate(content))


def _parse_part(part: object, field: str, media: list[MediumInput]) -> str | MediaSlot:
    parsed = parse_part(part, field)
    if isinstance(parsed, str):
        return parsed
    media.append(parsed)
    return MediaSlot(kind=parsed.kind)
