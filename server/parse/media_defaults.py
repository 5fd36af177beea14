"""Parses the options that a request sets for all of its media."""

from collections.abc import Sequence

from glimpse.media.inputs import MediaDefaults
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.media import blaming, parse_video_options
from glimpse.v1 import content_pb2


def parse_defaults(io: content_pb2.MediaIoOptions, processor: content_pb2.MediaProcessorOptions) -> MediaDefaults:
    """Raises InvalidRequest if options contradict each other or are out of range, or a colour is invalid."""
    field = "media_processor_options"
    own, of_videos = _parse_options(processor, field), _parse_options(io.video, "media_io_options.video")
    if None not in (own.fps or own.num_frames, of_videos.fps or of_videos.num_frames):
        message = "expected fps and num_frames here or in the I/O options of videos, got them in both"
        raise InvalidRequest(field, message, "conflicting_values")
    return MediaDefaults(
        min_pixels=own.min_pixels,
        max_pixels=own.max_pixels,
        fps=own.fps or of_videos.fps,
        num_frames=own.num_frames or of_videos.num_frames,
        background=_parse_colour(io.image.rgba_background_color),
        field=field,
    )


def _parse_options(options: content_pb2.MediaProcessorOptions | content_pb2.VideoIoOptions, field: str) -> VideoOptions:
    parsed = parse_video_options(options)
    with blaming(field):
        check_options(parsed, of_frames=False)
    return parsed


def _parse_colour(channels: Sequence[int]) -> Colour | None:
    match tuple(channels):
        case ():
            return None
        case red, green, blue if max(red, green, blue) <= 255:
            return red, green, blue
        case _:
            message = f"expected red, green and blue, each from 0 to 255, got {list(channels[:4])}"
            raise InvalidRequest("media_io_options.image.rgba_background_color", message)
