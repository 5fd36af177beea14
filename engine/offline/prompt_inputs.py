"""What callers of the offline door may pass, made into typed requests; what is not served yet is refused by name.

Prompts and conversations are dicts in vLLM's and OpenAI's forms. Knows no tokens; what media may be is
`glimpse.engine.offline.media_inputs`'s affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from glimpse.engine.offline.embedding_inputs import MediumInput
from glimpse.engine.offline.media_defaults import parse_wishes, with_wishes
from glimpse.engine.offline.media_inputs import parse_media, parse_part
from glimpse.engine.offline.tool_inputs import ChatOptions, parse_calls
from glimpse.engine.offline.visual_inputs import InputError, known_fields
from glimpse.engine.sampling_params import SamplingParams
from glimpse.engine.text.conversation import ChatMessage, MediaSlot

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt as token ids."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """A prompt as a conversation."""

    messages: tuple[ChatMessage, ...]
    options: ChatOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfflineRequest:
    """A prompt and its media."""

    prompt: str | TokenIds | Messages
    """A text is the prompt already."""
    media: tuple[MediumInput, ...]
    """In the order of their places in the prompt."""
    path: str
    """What errors call the request."""


def parse_prompt(prompt: object, path: str) -> OfflineRequest:
    """A text, or a dict of `prompt` or `prompt_token_ids`, perhaps with `multi_modal_data` and what goes with that.

    Raises:
        InputError: it is something else.
    """
    if isinstance(prompt, str):
        return OfflineRequest(prompt=prompt, media=(), path=path)
    known = ("prompt", "prompt_token_ids", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
    fields = known_fields(prompt, path, known=known)
    match fields:
        case {"prompt": str() as text, **rest} if "prompt_token_ids" not in rest:
            parsed: str | TokenIds = text
        case {"prompt_token_ids": Sequence() as token_ids, **rest} if "prompt" not in rest:
            if not all(isinstance(token_id, int) for token_id in token_ids):
                raise InputError(f"{path}.prompt_token_ids", "token ids are whole numbers")
            parsed = TokenIds(tuple(token_ids))
        case _:
            raise InputError(path, "a prompt has either a text (prompt) or a list of token ids (prompt_token_ids)")
    media = parse_media(fields.get("multi_modal_data") or {}, fields.get("multi_modal_uuids") or {}, path)
    wishes_path = f"{path}.mm_processor_kwargs"
    wishes = parse_wishes(fields.get("mm_processor_kwargs"), wishes_path)
    return OfflineRequest(prompt=parsed, media=with_wishes(media, wishes, wishes_path), path=path)


def parse_conversation(messages: object, path: str, options: ChatOptions) -> OfflineRequest:
    """Messages in OpenAI's form. `path` is empty for the only conversation, so that errors begin with `messages[0]`.

    Raises:
        InputError: a message is something else.
    """
    media: list[MediumInput] = []
    prefix = f"{path}." if path else ""
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError(f"{prefix}messages", "a conversation is a list of at least one message")
    parsed = tuple(
        _parse_message(message, f"{prefix}messages[{index}]", media) for index, message in enumerate(messages)
    )
    return OfflineRequest(prompt=Messages(parsed, options), media=tuple(media), path=f"{prefix}messages")


def check_sampling(sampling: SamplingParams, path: str) -> None:
    """The ranges that the engine relies on.

    Raises:
        InputError: a parameter is out of its range.
    """
    within = {  # written so that NaN fails
        "max_tokens": sampling.max_tokens >= 1,
        "temperature": 0 <= sampling.temperature <= 100,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": sampling.top_k >= 0,
        "min_p": 0 <= sampling.min_p <= 1,
        "frequency_penalty": -2 <= sampling.frequency_penalty <= 2,
        "presence_penalty": -2 <= sampling.presence_penalty <= 2,
        "repetition_penalty": 0 < sampling.repetition_penalty <= 100,
        "logit_bias": all(-100 <= bias <= 100 for bias in sampling.logit_bias.values()),
        "stop": all(sampling.stop),
        "min_tokens": 0 <= sampling.min_tokens <= sampling.max_tokens,
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= 20,
    }
    for name, is_within in within.items():
        if not is_within:
            raise InputError(f"{path}.{name}", f"{getattr(sampling, name)!r} is out of range")


def _parse_message(message: object, path: str, media: list[MediumInput]) -> ChatMessage:
    fields = known_fields(message, path, known=("role", "content", "name", "tool_calls", "tool_call_id"))
    role, content = fields.get("role"), fields.get("content")
    if role not in ROLES:
        raise InputError(f"{path}.role", f"{role!r} is not one of {', '.join(ROLES)}")
    for name in ("name", "tool_call_id"):
        if not isinstance(fields.get(name), str | None):
            raise InputError(f"{path}.{name}", "expected a text")
    calls = parse_calls(fields.get("tool_calls"), f"{path}.tool_calls")
    if calls and role != "assistant":
        raise InputError(f"{path}.tool_calls", "only an assistant calls tools")
    if content is None and calls:
        content = ()
    return ChatMessage(
        role=role,
        content=_parse_content(content, f"{path}.content", media),
        name=fields.get("name"),
        tool_calls=calls,
        tool_call_id=fields.get("tool_call_id"),
    )


def _parse_content(content: object, path: str, media: list[MediumInput]) -> tuple[str | MediaSlot, ...]:
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list | tuple):
        raise InputError(path, "a content is a text or a list of parts")
    return tuple(_parse_part(part, f"{path}[{index}]", media) for index, part in enumerate(content))


def _parse_part(part: object, path: str, media: list[MediumInput]) -> str | MediaSlot:
    parsed = parse_part(part, path)
    if isinstance(parsed, str):
        return parsed
    media.append(parsed)
    return MediaSlot(kind=parsed.kind)
