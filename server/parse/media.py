"""Pictures, clips and sounds of the wire → sources and wishes. Checks what is said of them, not what they show."""

from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.video_options import VideoOptions, find_invalid_option
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
from glimpse.server.request import AudioInput, ImageInput, VideoInput
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import content_pb2

LOW_DETAIL_MAX_PIXELS = 512 * 512

NAMES = {MediaKind.IMAGE: "picture", MediaKind.VIDEO: "clip", MediaKind.AUDIO: "sound"}
"""What messages to clients call the media that are served."""


def parse_uuid(part: content_pb2.ContentPart, path: str) -> str | None:
    """A medium's name. Raises InvalidRequest."""
    if not part.HasField("uuid"):
        return None
    if part.WhichOneof("part") in (None, "text"):
        raise InvalidRequest(f"{path}.uuid", "Only a medium has a uuid; say of which kind it is.")
    if not 1 <= len(part.uuid) <= MAX_UUID_CHARACTERS:
        raise InvalidRequest(f"{path}.uuid", f"A uuid has 1 to {MAX_UUID_CHARACTERS} characters.")
    return part.uuid


def parse_image(image: content_pb2.ImagePart, path: str, uuid: str | None) -> ImageInput:
    """`path` is that of the part. Raises InvalidRequest."""
    named, path = f"{path}.uuid", f"{path}.image"
    min_pixels = image.min_pixels if image.HasField("min_pixels") else None
    max_pixels = image.max_pixels if image.HasField("max_pixels") else None
    if image.detail == content_pb2.IMAGE_DETAIL_LOW:
        max_pixels = min(max_pixels or LOW_DETAIL_MAX_PIXELS, LOW_DETAIL_MAX_PIXELS)
    if min_pixels is not None and max_pixels is not None and min_pixels > max_pixels:
        raise InvalidRequest(f"{path}.min_pixels", f"{min_pixels} is more than the most pixels allowed, {max_pixels}.")
    if uuid is not None and image.source.WhichOneof("source") is None:
        source, field = CachedSource(uuid=uuid), named
    else:
        field = f"{path}.source"
        source = _parse_source(image.source, field)
    return ImageInput(source=source, min_pixels=min_pixels, max_pixels=max_pixels, field=field, uuid=uuid)


def parse_video(video: content_pb2.VideoPart, path: str, uuid: str | None) -> VideoInput:
    """`path` is that of the part. Raises InvalidRequest."""
    options = _parse_options(video)
    if uuid is not None and video.source.WhichOneof("source") is None and not video.HasField("frames"):
        # Whether it is a file or frames, and so which options it may have, is known where it is kept.
        return VideoInput(source=CachedSource(uuid=uuid), options=options, field=f"{path}.uuid", uuid=uuid)
    path = f"{path}.video"
    if video.WhichOneof("input") == "frames":
        field = f"{path}.frames"
        frames = [_parse_source(frame, f"{field}.frames[{index}]") for index, frame in enumerate(video.frames.frames)]
        if not frames:
            raise InvalidRequest(field, "The clip has no frames.", "missing_value")
        source = FrameSources(frames=tuple(frames))
    else:
        field = f"{path}.source"
        source = _parse_video_source(video.source, field)
    wrong = find_invalid_option(options, of_frames=isinstance(source, FrameSources))
    if wrong is not None:
        raise InvalidRequest(f"{path}.{wrong.name}", f"{wrong.name}: {wrong.message}.")
    return VideoInput(source=source, options=options, field=field, uuid=uuid)


def parse_audio(audio: content_pb2.AudioPart, path: str, uuid: str | None) -> AudioInput:
    """`path` is that of the part. Raises InvalidRequest."""
    if uuid is not None and audio.source.WhichOneof("source") is None:
        return AudioInput(source=CachedSource(uuid=uuid), field=f"{path}.uuid", uuid=uuid)
    field = f"{path}.audio.source"
    return AudioInput(source=_parse_source(audio.source, field, "sound"), field=field, uuid=uuid)


def _parse_options(video: content_pb2.VideoPart) -> VideoOptions:
    return VideoOptions(
        fps=video.fps if video.HasField("fps") else None,
        num_frames=video.num_frames if video.HasField("num_frames") else None,
        max_frames=video.max_frames if video.HasField("max_frames") else None,
        start_seconds=video.start_seconds if video.HasField("start_seconds") else None,
        end_seconds=video.end_seconds if video.HasField("end_seconds") else None,
        min_pixels=video.min_pixels if video.HasField("min_pixels") else None,
        max_pixels=video.max_pixels if video.HasField("max_pixels") else None,
        total_pixels=video.total_pixels if video.HasField("total_pixels") else None,
    )


def _parse_video_source(source: content_pb2.MediaSource, path: str) -> Source | FrameSources:
    if source.WhichOneof("source") != "url":
        return _parse_source(source, path, "clip")
    try:
        return parse_video_text(source.url)
    except MediaError as error:
        raise InvalidRequest(f"{path}.url", error.message, error.code.value) from error


def _parse_source(source: content_pb2.MediaSource, path: str, name: str = "picture") -> Source:
    match source.WhichOneof("source"):
        case "url":
            try:
                return parse_url_text(source.url)
            except MediaError as error:
                raise InvalidRequest(f"{path}.url", error.message, error.code.value) from error
        case "data":
            if not source.data:
                raise InvalidRequest(f"{path}.data", f"The {name} has no bytes.", "missing_value")
            return DataSource(data=source.data)
        case "upload_id":
            return UploadSource(handle=source.upload_id)
        case _:
            message = f"The {name} has no source: give a URL, its bytes, an upload, or the uuid of one sent before."
            raise InvalidRequest(path, message, "missing_value")
