"""Messages of the wire → a conversation. Checks what the messages say, not what their pictures show."""

from collections.abc import Iterable

from engine.plan import MediaKind
from engine.text.conversation import ChatMessage, MediaSlot
from glimpse.v1 import content_pb2
from media.errors import MediaError, MediaErrorCode
from media.source import DataSource, Source, parse_url_text
from server.errors import InvalidRequest
from server.request import Conversation, ImageInput

LOW_DETAIL_MAX_PIXELS = 512 * 512

_ROLES = {
    content_pb2.ROLE_SYSTEM: "system",
    content_pb2.ROLE_DEVELOPER: "developer",
    content_pb2.ROLE_USER: "user",
    content_pb2.ROLE_ASSISTANT: "assistant",
}


def parse_conversation(messages: Iterable[content_pb2.Message], *, max_images: int) -> Conversation:
    """Raises InvalidRequest at the first thing that cannot be served."""
    parsed: list[ChatMessage] = []
    images: list[ImageInput] = []
    for index, message in enumerate(messages):
        parsed.append(_parse_message(message, f"messages[{index}]", images))
        if len(images) > max_images:
            raise InvalidRequest(
                "messages",
                f"At most {max_images} pictures are accepted in a request (the server's --limit-mm-per-prompt).",
                "too_many_images",
            )
    return Conversation(messages=tuple(parsed), images=tuple(images))


def _parse_message(message: content_pb2.Message, path: str, images: list[ImageInput]) -> ChatMessage:
    if message.tool_calls:
        raise InvalidRequest.unsupported(f"{path}.tool_calls", "tool calls")
    if message.role == content_pb2.ROLE_TOOL:
        raise InvalidRequest.unsupported(f"{path}.role", "tool messages")
    if message.HasField("tool_call_id"):
        raise InvalidRequest(f"{path}.tool_call_id", "Only tool messages answer a tool call.")
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role", f"Role {message.role} is not known.")
    if not message.content:
        raise InvalidRequest(f"{path}.content", "The message has no content.", "missing_value")
    content = tuple(_parse_part(part, f"{path}.content[{index}]", images) for index, part in enumerate(message.content))
    return ChatMessage(role=role, content=content, name=message.name if message.HasField("name") else None)


def _parse_part(part: content_pb2.ContentPart, path: str, images: list[ImageInput]) -> str | MediaSlot:
    kind = part.WhichOneof("part")
    _check_uuid(part, kind, path)
    match kind:
        case "text":
            return part.text
        case "image":
            images.append(_parse_image(part.image, f"{path}.image"))
            return MediaSlot(kind=MediaKind.IMAGE)
        case "video":
            raise InvalidRequest.unsupported(f"{path}.video", "video")
        case "audio":
            raise InvalidRequest.unsupported(f"{path}.audio", "audio")
        case "embedding":
            raise InvalidRequest.unsupported(f"{path}.embedding", "embeddings as input")
        case _:
            raise InvalidRequest(path, "The part is empty: it needs text or a picture.", "missing_value")


def _check_uuid(part: content_pb2.ContentPart, kind: str | None, path: str) -> None:
    if not part.HasField("uuid"):
        return
    if kind is None or (kind == "image" and part.image.source.WhichOneof("source") is None):
        raise InvalidRequest(
            f"{path}.uuid",
            "No medium is kept under a uuid yet; send the medium itself.",
            MediaErrorCode.NOT_CACHED.value,
        )
    raise InvalidRequest.unsupported(f"{path}.uuid", "cache keys of the caller's own (uuid)")


def _parse_image(image: content_pb2.ImagePart, path: str) -> ImageInput:
    min_pixels = image.min_pixels if image.HasField("min_pixels") else None
    max_pixels = image.max_pixels if image.HasField("max_pixels") else None
    if image.detail == content_pb2.IMAGE_DETAIL_LOW:
        max_pixels = min(max_pixels or LOW_DETAIL_MAX_PIXELS, LOW_DETAIL_MAX_PIXELS)
    if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
        raise InvalidRequest(f"{path}.min_pixels", f"{min_pixels} is more than the most pixels allowed, {max_pixels}.")
    return ImageInput(
        source=_parse_source(image.source, f"{path}.source"),
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        field=f"{path}.source",
    )


def _parse_source(source: content_pb2.MediaSource, path: str) -> Source:
    match source.WhichOneof("source"):
        case "url":
            try:
                return parse_url_text(source.url)
            except MediaError as error:
                raise InvalidRequest(f"{path}.url", error.message, error.code.value) from error
        case "data":
            if not source.data:
                raise InvalidRequest(f"{path}.data", "The picture has no bytes.", "missing_value")
            return DataSource(data=source.data)
        case "upload":
            raise InvalidRequest.unsupported(f"{path}.upload", "uploads")
        case _:
            raise InvalidRequest(path, "The picture has no source: give a URL or its bytes.", "missing_value")
