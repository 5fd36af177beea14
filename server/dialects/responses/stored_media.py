"""Media of stored responses: each is stored once, by its content, and items refer to it by a file id."""

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from sys import maxsize

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.errors import MediaError
from glimpse.media.sources.files import STORED
from glimpse.media.sources.source import DataSource, FrameSources, parse_url_text, parse_video_text
from glimpse.media.sources.uploads import FileDetails, Part, Upload
from glimpse.openai.v1 import responses_pb2
from glimpse.v1 import content_pb2

_Source = responses_pb2.ResponseImage | responses_pb2.ResponseFile | content_pb2.MediaSource

_INLINE_BYTES = 1 << 10
"""What is smaller stays in its item."""


def detach(items: Iterable[responses_pb2.ResponseItem], share: str) -> list[Part]:
    """Puts file ids in place of the media that items have, and returns the media.

    `share`: ends the ids; empty if their tenant says whose they are.
    """
    parts: dict[str, Part] = {}
    for part in _parts(items):
        if part.HasField("input_video"):
            _split_frames(part.input_video.video_url)
        for source in _sources(part):
            name = source.WhichOneof("source")
            value = getattr(source, name) if name else ""
            if name == _id_field(source) or len(value) <= _INLINE_BYTES or (data := _data(value)) is None:
                continue
            digest = hashlib.sha256(data)
            handle = f"{STORED}{digest.hexdigest()}{f'-{share}' if share else ''}"
            head = value[: value.find(",") + 1] if isinstance(value, str) else ""
            file, details = MediaFile(digest=digest.digest(), data=data), FileDetails(head, name or "")
            parts.setdefault(handle, Part(handle=handle, file=file, details=details))
            setattr(source, _id_field(source), handle)
    return [*parts.values()]


def detached(items: Iterable[responses_pb2.ResponseItem]) -> list[str]:
    """Returns the file ids that `detach` has put into items, as often as they have them."""
    handles = (getattr(source, _id_field(source)) for part in _parts(items) for source in _sources(part))
    return [handle for handle in handles if handle.startswith(STORED)]


def attach(items: Iterable[responses_pb2.ResponseItem], media: Mapping[str, tuple[Upload, MediaFile]]) -> None:
    """Puts media, by their file ids, back into items."""
    for source in (source for part in _parts(items) for source in _sources(part)):
        handle = getattr(source, _id_field(source))
        if handle in media:
            upload, file = media[handle]
            text = upload.details.filename + b64encode(file.data).decode()
            if isinstance(source, content_pb2.MediaSource):
                source.url = text
            elif isinstance(source, responses_pb2.ResponseImage):
                source.image_url = text
            else:
                source.file_data = text


def _parts(items: Iterable[responses_pb2.ResponseItem]) -> Iterator[responses_pb2.ResponsePart]:
    for item in items:
        yield from item.message.content
        yield from item.function_call_output.output


def _sources(part: responses_pb2.ResponsePart) -> Iterator[_Source]:
    match part.WhichOneof("part"):
        case "input_image":
            yield part.input_image
        case "input_file":
            yield part.input_file
        case "input_audio":
            yield part.input_audio.input_audio.source
        case "input_video":
            video = part.input_video.video_url
            yield from video.frames.frames if video.HasField("frames") else (video.source,)
        case _:
            pass


def _id_field(source: _Source) -> str:
    return "upload_id" if isinstance(source, content_pb2.MediaSource) else "file_id"


def _split_frames(video: content_pb2.VideoPart) -> None:
    """Makes a list of frames of those that came as one data URL."""
    if len(video.source.url) <= _INLINE_BYTES:
        return
    try:
        frames = parse_video_text(video.source.url, max_bytes=maxsize)
    except MediaError:
        return
    if isinstance(frames, FrameSources):
        sources = (content_pb2.MediaSource(data=each.data) for each in frames.frames if isinstance(each, DataSource))
        video.frames.frames.extend(sources)


def _data(value: str | bytes) -> bytes | None:
    """Returns the bytes that a source has; None if it says where they are."""
    if isinstance(value, bytes):
        return value
    try:
        source = parse_url_text(value, max_bytes=maxsize)
    except MediaError:
        return None
    return source.data if isinstance(source, DataSource) else None
