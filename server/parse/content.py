"""Messages of the wire → a conversation. Knows who may say what; what is said of media is `parse_media`'s affair."""

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping

from glimpse.engine.text.conversation import ChatMessage, MediaSlot, ToolCall
from glimpse.media.kind import MediaKind
from glimpse.server.parse.embeddings import parse_embeddings
from glimpse.server.parse.media import NAMES, parse_audio, parse_image, parse_uuid, parse_video
from glimpse.server.parse.tools import check_name
from glimpse.server.request import Conversation, MediumInput
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import content_pb2

Media = list[MediumInput]

_ROLES = {
    content_pb2.ROLE_SYSTEM: "system",
    content_pb2.ROLE_DEVELOPER: "developer",
    content_pb2.ROLE_USER: "user",
    content_pb2.ROLE_ASSISTANT: "assistant",
    content_pb2.ROLE_TOOL: "tool",
}

_TAKEN = {MediaKind.IMAGE: "pictures", MediaKind.VIDEO: "clips", MediaKind.AUDIO: "audio"}


def parse_conversation(
    messages: Iterable[content_pb2.Message], *, max_media: Mapping[MediaKind, int], model: str = ""
) -> Conversation:
    """Raises InvalidRequest at the first thing that cannot be served.

    Args:
        messages: the conversation.
        max_media: the most media of each kind in it; a kind that is not there is one that the model does not take.
        model: its name, if the request says it.
    """
    parsed: list[ChatMessage] = []
    media: Media = []
    call_ids: set[str] = set()
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        parsed.append(_parse_message(message, path, media))
        call_ids.update(call.id for call in parsed[-1].tool_calls)
        _check_answered_call(message, path, call_ids)
        _check_taken(media, max_media, model)
        _check_number(media, max_media)
    return Conversation(messages=tuple(parsed), media=tuple(media))


def _check_taken(media: Media, max_media: Mapping[MediaKind, int], model: str) -> None:
    for medium in media:
        if medium.kind not in max_media:
            name = f"The model '{model}'" if model else "The model"
            raise InvalidRequest(medium.field, f"{name} takes no {_TAKEN[medium.kind]}.", "unsupported")


def _check_number(media: Media, max_media: Mapping[MediaKind, int]) -> None:
    counts = Counter(medium.kind for medium in media)
    for kind, count in counts.items():
        if count > max_media[kind]:
            raise InvalidRequest(
                "messages",
                f"At most {max_media[kind]} {NAMES[kind]}s are accepted in a request "
                "(the server's --limit-mm-per-prompt).",
                f"too_many_{kind.value}s",
            )


def _parse_message(message: content_pb2.Message, path: str, media: Media) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role", f"Role {message.role} is not known.")
    if message.tool_calls and message.role != content_pb2.ROLE_ASSISTANT:
        raise InvalidRequest(f"{path}.tool_calls", "Only assistant messages call tools.")
    if not message.content and not message.tool_calls:
        raise InvalidRequest(f"{path}.content", "The message has no content.", "missing_value")
    return ChatMessage(
        role=role,
        content=tuple(
            _parse_part(part, f"{path}.content[{index}]", media) for index, part in enumerate(message.content)
        ),
        name=message.name if message.HasField("name") else None,
        tool_calls=tuple(
            _parse_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ),
        tool_call_id=message.tool_call_id if message.HasField("tool_call_id") else None,
    )


def _check_answered_call(message: content_pb2.Message, path: str, call_ids: Container[str]) -> None:
    """A tool's message answers a call that was made before, and no other message does."""
    field = f"{path}.tool_call_id"
    if message.role != content_pb2.ROLE_TOOL:
        if message.HasField("tool_call_id"):
            raise InvalidRequest(field, "Only tool messages answer a tool call.")
    elif not message.tool_call_id:
        raise InvalidRequest(field, "A tool message names the call that it answers.", "missing_value")
    elif message.tool_call_id not in call_ids:
        raise InvalidRequest(field, f"No message before makes a call '{message.tool_call_id[:64]}'.")


def _parse_call(call: content_pb2.ToolCall, path: str) -> ToolCall:
    if not call.id:
        raise InvalidRequest(f"{path}.id", "A call has an id.", "missing_value")
    if call.WhichOneof("call") != "function":
        raise InvalidRequest(f"{path}.function", "A call is that of a function.", "missing_value")
    name = check_name(call.function.name, f"{path}.function.name")
    arguments = call.function.arguments or "{}"  # what some clients send for none
    _check_arguments(arguments, f"{path}.function.arguments")
    return ToolCall(id=call.id, name=name, arguments=arguments)


def _check_arguments(text: str, field: str) -> None:
    """Chat templates write arguments in the model's own way, which takes an object."""
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InvalidRequest(field, "The arguments of a call are a JSON object, as text.")


def _parse_part(part: content_pb2.ContentPart, path: str, media: Media) -> str | MediaSlot:
    uuid = parse_uuid(part, path)
    match part.WhichOneof("part"):
        case "text":
            return part.text
        case "image":
            media.append(parse_image(part.image, path, uuid))
            return MediaSlot(kind=MediaKind.IMAGE)
        case "video":
            media.append(parse_video(part.video, path, uuid))
            return MediaSlot(kind=MediaKind.VIDEO)
        case "audio":
            media.append(parse_audio(part.audio, path, uuid))
            return MediaSlot(kind=MediaKind.AUDIO)
        case "image_embeddings":
            media.append(parse_embeddings(MediaKind.IMAGE, part.image_embeddings, path, uuid))
            return MediaSlot(kind=MediaKind.IMAGE)
        case "video_embeddings":
            media.append(parse_embeddings(MediaKind.VIDEO, part.video_embeddings, path, uuid))
            return MediaSlot(kind=MediaKind.VIDEO)
        case "audio_embeddings":
            media.append(parse_embeddings(MediaKind.AUDIO, part.audio_embeddings, path, uuid))
            return MediaSlot(kind=MediaKind.AUDIO)
        case _:
            raise InvalidRequest(
                path, "The part is empty: it needs text, a picture, a clip or a sound.", "missing_value"
            )
