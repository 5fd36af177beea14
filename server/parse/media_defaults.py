"""Parses the options that a request sets for all of its media."""

from collections.abc import Sequence

from glimpse.media.inputs import MediaDefaults
from glimpse.media.processing.rgb import Colour
from glimpse.server.errors import InvalidRequest
from glimpse.v1 import content_pb2


def parse_defaults(io: content_pb2.MediaIoOptions, processor: content_pb2.MediaProcessorOptions) -> MediaDefaults:
    """Raises InvalidRequest if both messages say how frames are sampled, or a colour is invalid."""
    sampling: content_pb2.MediaProcessorOptions | content_pb2.VideoIoOptions = processor
    if io.video.HasField("fps") or io.video.HasField("num_frames"):
        if processor.HasField("fps") or processor.HasField("num_frames"):
            message = "expected fps and num_frames here or in the I/O options of videos, got them in both"
            raise InvalidRequest("media_processor_options", message, "conflicting_values")
        sampling = io.video
    return MediaDefaults(
        min_pixels=processor.min_pixels if processor.HasField("min_pixels") else None,
        max_pixels=processor.max_pixels if processor.HasField("max_pixels") else None,
        fps=sampling.fps if sampling.HasField("fps") else None,
        num_frames=sampling.num_frames if sampling.HasField("num_frames") else None,
        background=_parse_colour(io.image.rgba_background_color),
        field="media_processor_options",
    )


def _parse_colour(channels: Sequence[int]) -> Colour | None:
    match tuple(channels):
        case ():
            return None
        case red, green, blue if max(red, green, blue) <= 255:
            return red, green, blue
        case _:
            message = f"expected red, green and blue, each from 0 to 255, got {list(channels[:4])}"
            raise InvalidRequest("media_io_options.image.rgba_background_color", message)
