"""What callers of the offline door may pass, made into typed requests; what is not served yet is refused by name.

Prompts and conversations are dicts in vLLM's and OpenAI's forms. Knows no tokens; what a picture or a clip may be is
`engine.given`'s affair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import PIL.Image

from engine.given import (
    CLIP_OPTIONS,
    ClipInput,
    ImageInput,
    InputError,
    is_frame,
    known_fields,
    parse_clip,
    parse_picture,
    parse_url,
)
from engine.given_embeddings import MediumInput, are_embeddings, parse_embedding, parse_embeddings
from engine.given_sounds import parse_audio_url, parse_input_audio, parse_sound, parse_sounds
from engine.plan import MediaKind
from engine.sampling_params import SamplingParams
from engine.text.conversation import ChatMessage, MediaSlot
from engine.tool_inputs import ChatOptions, parse_calls
from media.embeddings import EmbeddedKind

ROLES = ("system", "developer", "user", "assistant", "tool")
_PARTS = (
    "text, image_url, image_pil, image_embeds, video_url, video, video_embeds, audio_url, input_audio, audio and "
    "audio_embeds"
)


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
    """A text, or a dict of `prompt` or `prompt_token_ids` and perhaps `multi_modal_data`.

    Raises:
        InputError: it is something else.
    """
    if isinstance(prompt, str):
        return OfflineRequest(prompt=prompt, media=(), path=path)
    fields = known_fields(prompt, path, known=("prompt", "prompt_token_ids", "multi_modal_data"))
    match fields:
        case {"prompt": str() as text, **rest} if "prompt_token_ids" not in rest:
            parsed: str | TokenIds = text
        case {"prompt_token_ids": Sequence() as token_ids, **rest} if "prompt" not in rest:
            if not all(isinstance(token_id, int) for token_id in token_ids):
                raise InputError(f"{path}.prompt_token_ids", "token ids are whole numbers")
            parsed = TokenIds(tuple(token_ids))
        case _:
            raise InputError(path, "a prompt has either a text (prompt) or a list of token ids (prompt_token_ids)")
    media = _parse_media(fields.get("multi_modal_data") or {}, f"{path}.multi_modal_data")
    return OfflineRequest(prompt=parsed, media=media, path=path)


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


def _parse_media(media: object, path: str) -> tuple[MediumInput, ...]:
    """Pictures, clips, then sounds: the prompt's placeholders say which stands where."""
    fields = known_fields(media, path, known=("image", "video", "audio"))
    return (
        *_parse_pictures(fields.get("image", ()), f"{path}.image"),
        *_parse_clips(fields.get("video", ()), f"{path}.video"),
        *_parse_sounds(fields.get("audio", ()), f"{path}.audio"),
    )


def _parse_pictures(images: object, path: str) -> Sequence[MediumInput]:
    if are_embeddings(images):
        return parse_embeddings(EmbeddedKind.IMAGE, images, path)
    return [parse_picture(image, f"{path}[{index}]") for index, image in enumerate(_several(images))]


def _parse_clips(clips: object, path: str) -> Sequence[MediumInput]:
    if are_embeddings(clips):
        return parse_embeddings(EmbeddedKind.VIDEO, clips, path)
    # A list of pictures is one clip.
    several = (clips,) if isinstance(clips, list | tuple) and clips and is_frame(clips[0]) else _several(clips)
    return [parse_clip(clip, f"{path}[{index}]", {}) for index, clip in enumerate(several)]


def _parse_sounds(sounds: object, path: str) -> Sequence[MediumInput]:
    return parse_embeddings(EmbeddedKind.AUDIO, sounds, path) if are_embeddings(sounds) else parse_sounds(sounds, path)


def _several(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)


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
    match part:
        case {"type": "text"}:
            text = known_fields(part, path, known=("type", "text")).get("text")
            if not isinstance(text, str):
                raise InputError(f"{path}.text", "there is no text")
            return text
        case {"type": "image_url"}:
            image_url = known_fields(part, path, known=("type", "image_url")).get("image_url")
            media.append(_parse_image_url(image_url, f"{path}.image_url"))
            return MediaSlot(kind=MediaKind.IMAGE)
        case {"type": "image_pil"}:
            picture = known_fields(part, path, known=("type", "image_pil")).get("image_pil")
            if not isinstance(picture, PIL.Image.Image):
                raise InputError(f"{path}.image_pil", f"not a PIL image but {type(picture).__name__}")
            media.append(ImageInput(picture=picture, path=f"{path}.image_pil"))
            return MediaSlot(kind=MediaKind.IMAGE)
        case {"type": "video_url"}:
            video_url = known_fields(part, path, known=("type", "video_url")).get("video_url")
            media.append(_parse_video_url(video_url, f"{path}.video_url"))
            return MediaSlot(kind=MediaKind.VIDEO)
        case {"type": "video"}:
            fields = known_fields(part, path, known=("type", "video", *CLIP_OPTIONS))
            media.append(parse_clip(fields.get("video"), f"{path}.video", fields))
            return MediaSlot(kind=MediaKind.VIDEO)
        case {"type": "audio_url" | "input_audio" | "audio" as name}:
            media.append(_SOUND_PARTS[name](known_fields(part, path, known=("type", name)).get(name), f"{path}.{name}"))
            return MediaSlot(kind=MediaKind.AUDIO)
        case {"type": "image_embeds" | "video_embeds" | "audio_embeds" as name}:
            kind = EmbeddedKind(name.removesuffix("_embeds"))
            fields = known_fields(part, path, known=("type", name))
            media.append(parse_embedding(kind, fields.get(name), f"{path}.{name}"))
            return MediaSlot(kind=MediaKind(kind))
        case {"type": kind}:
            raise InputError(path, f"parts of type {kind!r} are not supported; {_PARTS} are")
        case _:
            raise InputError(path, "a part is a dict with a type")


_SOUND_PARTS = {"audio_url": parse_audio_url, "input_audio": parse_input_audio, "audio": parse_sound}


def _parse_image_url(image_url: object, path: str) -> ImageInput:
    if isinstance(image_url, str):
        return ImageInput(picture=parse_url(image_url, path), path=path)
    fields = known_fields(image_url, path, known=("url", "min_pixels", "max_pixels"))
    for name in ("min_pixels", "max_pixels"):
        if not isinstance(fields.get(name), int | None):
            raise InputError(f"{path}.{name}", "not a whole number")
    return ImageInput(
        picture=parse_url(fields.get("url"), f"{path}.url"),
        path=path,
        min_pixels=fields.get("min_pixels"),
        max_pixels=fields.get("max_pixels"),
    )


def _parse_video_url(video_url: object, path: str) -> ClipInput:
    if isinstance(video_url, str):
        return parse_clip(video_url, path, {})
    fields = known_fields(video_url, path, known=("url", *CLIP_OPTIONS))
    url = fields.get("url")
    if not isinstance(url, str | list | tuple):
        raise InputError(f"{path}.url", "a clip's URL is a text, or a list of those of its frames")
    return parse_clip(url, path, fields)
