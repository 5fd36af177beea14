"""Parses the messages of a conversation: roles, content parts, tool calls."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from glimpse.engine.checkpoint.text.conversation import ROLES, ChatMessage, MediaSlot, ToolCall
from glimpse.media.inputs import MediumInput
from glimpse.media.kind import MediaKind
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.embeddings import parse_embeddings
from glimpse.server.parse.json_text import parse_object
from glimpse.server.parse.media import (
    parse_audio,
    parse_document,
    parse_file,
    parse_image,
    parse_uuid,
    parse_video,
)
from glimpse.server.parse.tools import check_name
from glimpse.server.request import Conversation
from glimpse.server.served_model import ServedModel
from glimpse.v1 import content_pb2

_ROLES = {content_pb2.Role.Value(f"ROLE_{role.upper()}"): role for role in ROLES}


def parse_conversation(
    messages: Iterable[content_pb2.Message], model: ServedModel, *, name: str = "", field: str = "messages"
) -> Conversation:
    """Parses the messages of a request.

    Args:
        name: the model's, if the request has it.

    Raises:
        InvalidRequest: the first field that cannot be served.
    """
    parsed: list[ChatMessage] = []
    media: list[MediumInput] = []
    call_ids: set[str] = set()
    for index, message in enumerate(messages):
        path = f"{field}[{index}]"
        parsed.append(_parse_message(message, path, media, model.max_media))
        if model.gives_call_ids:
            _check_ids(message, path, call_ids)
        _check_kinds(media, model.max_media, name)
        _check_counts(media, model.max_media, field)
    return Conversation(messages=tuple(parsed), media=media)


def parse_parts(
    parts: Sequence[content_pb2.ContentPart], model: ServedModel, *, field: str
) -> tuple[tuple[str | MediaSlot, ...], list[MediumInput]]:
    """Parses content parts outside a conversation. Returns texts and slots, and the media. Raises InvalidRequest."""
    media: list[MediumInput] = []
    content = _parse_content(parts, field, media, model.max_media)
    _check_kinds(media, model.max_media, "")
    _check_counts(media, model.max_media, field)
    return content, media


def _check_kinds(media: Iterable[MediumInput], max_media: Mapping[MediaKind, int], name: str) -> None:
    for medium in media:
        if medium.kind not in max_media:
            model = f"the model '{name}'" if name else "the model"
            raise InvalidRequest(medium.field, f"{model} does not support {medium.kind} input", "unsupported")


def _check_counts(media: Iterable[MediumInput], max_media: Mapping[MediaKind, int], field: str) -> None:
    counts = Counter(medium.kind for medium in media)
    for kind, count in counts.items():
        if count > max_media[kind]:
            raise InvalidRequest(
                field,
                f"expected at most {max_media[kind]} {kind} inputs (the server's --limit-mm-per-prompt), got {count}",
                f"too_many_{kind.value}s",
            )


def _parse_message(
    message: content_pb2.Message, path: str, media: list[MediumInput], max_media: Mapping[MediaKind, int]
) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role", f"expected a known role, got {message.role}")
    if message.tool_calls and message.role != content_pb2.ROLE_ASSISTANT:
        raise InvalidRequest(f"{path}.tool_calls", f"only assistant messages can have tool calls, got role '{role}'")
    may_be_empty = message.tool_calls or message.role == content_pb2.ROLE_TOOL  # many tools return nothing
    if not (message.content or may_be_empty):
        raise InvalidRequest(f"{path}.content", "expected content or tool calls, got neither", "missing_value")
    if message.HasField("reasoning") and message.role != content_pb2.ROLE_ASSISTANT:
        raise InvalidRequest(f"{path}.reasoning", f"only assistant messages can have reasoning, got role '{role}'")
    return ChatMessage(
        role=role,
        content=_parse_content(message.content, f"{path}.content", media, max_media),
        name=message.name if message.HasField("name") else None,
        tool_calls=tuple(
            _parse_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ),
        tool_call_id=message.tool_call_id if message.HasField("tool_call_id") else None,
        reasoning=message.reasoning if message.HasField("reasoning") else None,
    )


def _check_ids(message: content_pb2.Message, path: str, call_ids: set[str]) -> None:
    """Checks that tool calls have ids, and that tool messages, and no others, refer to an earlier one of `call_ids`."""
    for index, call in enumerate(message.tool_calls):
        if not call.id:
            raise InvalidRequest(f"{path}.tool_calls[{index}].id", "expected the tool call's id", "missing_value")
        call_ids.add(call.id)
    field = f"{path}.tool_call_id"
    if message.role != content_pb2.ROLE_TOOL:
        if message.HasField("tool_call_id"):
            raise InvalidRequest(field, "only tool messages can have a tool_call_id")
    elif not message.tool_call_id:
        raise InvalidRequest(field, "expected the id of the tool call that the message answers", "missing_value")
    elif message.tool_call_id not in call_ids:
        raise InvalidRequest(field, f"expected the id of an earlier tool call, got '{message.tool_call_id[:64]}'")


def _parse_call(call: content_pb2.ToolCall, path: str) -> ToolCall:
    if call.WhichOneof("call") != "function":
        raise InvalidRequest(f"{path}.function", "expected a function call", "missing_value")
    name = check_name(call.function.name, f"{path}.function.name")
    arguments = call.function.arguments or "{}"  # some clients send an empty string for no arguments
    # Chat templates render arguments in the model's own format, which takes an object.
    parse_object(arguments, f"{path}.function.arguments", wrong_type="invalid_value")
    return ToolCall(id=call.id, name=name, arguments=arguments)


def _parse_content(
    parts: Sequence[content_pb2.ContentPart],
    path: str,
    media: list[MediumInput],
    max_media: Mapping[MediaKind, int],
) -> tuple[str | MediaSlot, ...]:
    """Returns texts and media slots; the media themselves are appended to `media`."""
    content: list[str | MediaSlot] = []
    for index, part in enumerate(parts):
        parsed = _parse_part(part, f"{path}[{index}]", max_media)
        if isinstance(parsed, str):
            content.append(parsed)
        else:
            content.append(MediaSlot(kind=parsed.kind))
            media.append(parsed)
    return tuple(content)


def _parse_part(part: content_pb2.ContentPart, path: str, max_media: Mapping[MediaKind, int]) -> str | MediumInput:
    uuid = parse_uuid(part, path)
    match part.WhichOneof("part"):
        case "text":
            return part.text
        case "image":
            return parse_image(part.image, path, uuid)
        case "video":
            return parse_video(part.video, path, uuid)
        case "audio":
            return parse_audio(part.audio, path, uuid)
        case "file":
            return parse_file(part.file, path, uuid, max_images=max_media.get(MediaKind.IMAGE, 0))
        case "document":
            return parse_document(part.document, path, uuid, max_images=max_media.get(MediaKind.IMAGE, 0))
        case "image_embeddings":
            return parse_embeddings(MediaKind.IMAGE, part.image_embeddings, path, uuid)
        case "video_embeddings":
            return parse_embeddings(MediaKind.VIDEO, part.video_embeddings, path, uuid)
        case "audio_embeddings":
            return parse_embeddings(MediaKind.AUDIO, part.audio_embeddings, path, uuid)
        case _:
            raise InvalidRequest(
                path, "expected text, an image, a video, audio or a document, got nothing", "missing_value"
            )
