"""Parses the images, videos and audio inputs of content parts. Checks their options, not their contents."""

from dataclasses import fields
from functools import partial
from typing import Any

from google.protobuf.message import Message

from glimpse.media import errors
from glimpse.media.containers.sniff import find_kind
from glimpse.media.errors import MediaErrorCode
from glimpse.media.inputs import AudioInput, DocumentInput, ImageInput, VideoInput, is_made_of_frames
from glimpse.media.kind import MediaKind
from glimpse.media.processing.document import PageRange, check_pages
from glimpse.media.processing.sizing.recipe import Detail, check_image_bounds
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.media.sources.source import (
    MAX_UUID_CHARACTERS,
    CachedSource,
    DataSource,
    FrameSources,
    Source,
    UploadSource,
    parse_url_text,
    parse_video_text,
)
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import content_pb2

_DETAILS = {content_pb2.IMAGE_DETAIL_LOW: Detail.LOW, content_pb2.IMAGE_DETAIL_ORIGINAL: Detail.ORIGINAL}
"""Others are the same as AUTO."""

blaming = partial(errors.blaming, InvalidRequest)
"""Raises InvalidRequest for a MediaError in its block, about this field."""


def parse_uuid(part: content_pb2.ContentPart, path: str) -> str | None:
    """Returns the uuid of a medium. Raises InvalidRequest."""
    if not part.HasField("uuid"):
        return None
    if part.WhichOneof("part") in (None, "text"):
        raise InvalidRequest(f"{path}.uuid", "expected a medium in the same content part, since only media have a uuid")
    if not 1 <= len(part.uuid) <= MAX_UUID_CHARACTERS:
        raise InvalidRequest(f"{path}.uuid", f"expected 1 to {MAX_UUID_CHARACTERS} characters, got {len(part.uuid)}")
    return part.uuid


def parse_image(image: content_pb2.ImagePart, path: str, uuid: str | None) -> ImageInput:
    """Parses an image; `path` is that of the content part. Raises InvalidRequest."""
    options = _parse_image_options(image, f"{path}.image")
    source, field = _parse_source_or_uuid(image.source, f"{path}.image.source", uuid, path)
    return ImageInput(source=source, field=field, options_field=f"{path}.image", uuid=uuid, **options)


def parse_video(video: content_pb2.VideoPart, path: str, uuid: str | None) -> VideoInput:
    """Parses a video; `path` is that of the content part. Raises InvalidRequest."""
    options, part, path = parse_video_options(video), path, f"{path}.video"
    if uuid is not None and video.source.WhichOneof("source") is None and not video.HasField("frames"):
        # The loader checks the options, once it knows whether a file or frames are cached.
        source = CachedSource(uuid=uuid)
        return VideoInput(source=source, options=options, field=f"{part}.uuid", options_field=path, uuid=uuid)
    if video.WhichOneof("input") == "frames":
        field = f"{path}.frames"
        source = _parse_frames(video.frames, field)
    else:
        field = f"{path}.source"
        source = _parse_video_source(video.source, field)
    with blaming(path):
        check_options(options, of_frames=is_made_of_frames(source))
    return VideoInput(source=source, options=options, field=field, options_field=path, uuid=uuid)


def parse_audio(audio: content_pb2.AudioPart, path: str, uuid: str | None) -> AudioInput:
    """Parses an audio input; `path` is that of the content part. Raises InvalidRequest."""
    source, field = _parse_source_or_uuid(audio.source, f"{path}.audio.source", uuid, path)
    return AudioInput(source=source, field=field, uuid=uuid)


def parse_file(
    file: content_pb2.FilePart, path: str, uuid: str | None, *, max_images: int
) -> ImageInput | VideoInput | AudioInput | DocumentInput:
    """Parses a medium that is told by its first bytes. The arguments are those of `parse_document`.

    Uploads have become parts of their own kinds before.

    Raises:
        InvalidRequest: its kind is unknown.
    """
    field, options_field = f"{path}.file.source", f"{path}.file"
    source = _parse_source(file.source, field)
    if not isinstance(source, DataSource):
        message = (
            "expected an upload, the bytes of a file or a data URL; send what is elsewhere as an image, a video, audio "
            "or a document"
        )
        raise InvalidRequest(field, message, "unsupported")
    match find_kind(source.data):
        case MediaKind.IMAGE:
            return ImageInput(source=source, field=field, options_field=options_field, uuid=uuid)
        case MediaKind.VIDEO:
            return VideoInput(
                source=source, options=VideoOptions(), field=field, options_field=options_field, uuid=uuid
            )
        case MediaKind.AUDIO:
            return AudioInput(source=source, field=field, uuid=uuid)
        case MediaKind.DOCUMENT:
            pages = content_pb2.DocumentPart()
            return _document(pages, source, field, options_field=options_field, uuid=uuid, max_images=max_images)
        case _:
            message = "expected an image, a video, audio or a document, got a file of another format"
            raise InvalidRequest(field, message, MediaErrorCode.UNSUPPORTED_FORMAT)


def parse_document(
    document: content_pb2.DocumentPart, path: str, uuid: str | None, *, max_images: int
) -> DocumentInput:
    """Parses a document; `path` is that of the content part, `max_images` the model's. Raises InvalidRequest."""
    source, field = _parse_source_or_uuid(document.source, f"{path}.document.source", uuid, path)
    options_field = f"{path}.document"
    return _document(document, source, field, options_field=options_field, uuid=uuid, max_images=max_images)


def _document(
    document: content_pb2.DocumentPart,
    source: Source | CachedSource,
    field: str,
    *,
    options_field: str,
    uuid: str | None,
    max_images: int,
) -> DocumentInput:
    pages = PageRange(
        first=document.first_page if document.HasField("first_page") else 1,
        last=document.last_page if document.HasField("last_page") else None,
    )
    with blaming(options_field):
        check_pages(pages)
    options = _parse_image_options(document, options_field)
    with_images, with_texts = _page_content(document.page_content, max_images, f"{options_field}.page_content")
    return DocumentInput(
        source=source,
        field=field,
        options_field=options_field,
        uuid=uuid,
        pages=pages,
        with_images=with_images,
        with_texts=with_texts,
        max_images=max_images,
        dpi=document.dpi if document.HasField("dpi") else None,
        **options,
    )


def _parse_image_options(part: content_pb2.ImagePart | content_pb2.DocumentPart, field: str) -> dict[str, Any]:
    """Returns the bounds that are set, and the detail, by their names in `ImageInput`."""
    bounds = {name: getattr(part, name) for name in ("min_pixels", "max_pixels") if part.HasField(name)}
    detail = _DETAILS.get(part.detail, Detail.AUTO)
    with blaming(field):
        check_image_bounds(bounds.get("min_pixels"), bounds.get("max_pixels"), detail)
    return {**bounds, "detail": detail}


def _page_content(asked: content_pb2.PageContent, max_images: int, field: str) -> tuple[bool, bool]:
    """Returns whether the model reads images of pages, and their texts."""
    with_images, with_texts = {
        content_pb2.PAGE_CONTENT_IMAGE: (True, False),
        content_pb2.PAGE_CONTENT_TEXT: (False, True),
        content_pb2.PAGE_CONTENT_IMAGE_AND_TEXT: (True, True),
    }.get(asked, (bool(max_images), not max_images))
    if with_images and not max_images:
        raise InvalidRequest(field, "expected 'text', since the model does not accept images", "unsupported")
    return with_images, with_texts


def parse_video_options(message: Message) -> VideoOptions:
    """Reads the options that a message has, of which it may have other fields too."""
    names = {each.name for each in fields(VideoOptions)}
    return VideoOptions(**{field.name: value for field, value in message.ListFields() if field.name in names})


def _parse_source_or_uuid(
    source: content_pb2.MediaSource, field: str, uuid: str | None, part: str
) -> tuple[Source | CachedSource, str]:
    """Returns the source, or the uuid that replaces it, and the field that says so."""
    if uuid is not None and source.WhichOneof("source") is None:
        return CachedSource(uuid=uuid), f"{part}.uuid"
    return _parse_source(source, field), field


def _parse_frames(frames: content_pb2.FrameList, field: str) -> FrameSources:
    sources = [_parse_source(frame, f"{field}.frames[{index}]") for index, frame in enumerate(frames.frames)]
    if not sources:
        raise InvalidRequest(field, "expected at least one frame", "missing_value")
    return FrameSources(frames=tuple(sources))


def _parse_video_source(source: content_pb2.MediaSource, path: str) -> Source | FrameSources:
    if source.WhichOneof("source") != "url":
        return _parse_source(source, path)
    with blaming(f"{path}.url"):
        return parse_video_text(source.url)


def _parse_source(source: content_pb2.MediaSource, path: str) -> Source:
    match source.WhichOneof("source"):
        case "url":
            with blaming(f"{path}.url"):
                return parse_url_text(source.url)
        case "data":
            if not source.data:
                raise InvalidRequest(f"{path}.data", "expected the bytes of a file, got none", "missing_value")
            return DataSource(data=source.data)
        case "upload_id":
            return UploadSource(handle=source.upload_id)
        case _:
            message = "expected a URL, the bytes of a file, an upload, or the uuid of a medium sent before"
            raise InvalidRequest(path, message, "missing_value")
