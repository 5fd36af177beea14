"""Video files: selects the part to use, samples its frames, and limits the work of decoding them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from fractions import Fraction

from glimpse.media.containers.video import FrameTimes, VideoFile, open_video
from glimpse.media.decoding.animation_file import AnimationFile, is_image_file, open_animation
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.frame_sampling import MAX_FRAMES, FrameSampling, num_decoded
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video import Video, VideoProcessing, make_video
from glimpse.media.processing.video_options import VideoOptions, check_options

MAX_FRAME_PIXELS = 4096 * 2304
"""Limit on a frame: a decoder keeps up to 16 of them in memory."""
_DECODER_BYTES = 24
"""For a pixel of these 16, in YUV with a quarter of the colors."""
MAX_DECODED_PIXELS = 40_000_000_000
"""Limit on the pixels of all frames decoded for one file: one to two minutes of CPU time."""


def video_from_file(
    data: bytes,
    processing: VideoProcessing,
    options: VideoOptions,
    *,
    stopped: Callable[[], bool] = lambda: False,
    on_size: Callable[[int], None] = lambda _: None,
) -> Video:
    """Decodes and preprocesses a video file, or an animated image.

    Args:
        options: The request's options; without `fps` and `num_frames`, frames are sampled at the default rate.
        stopped: Called between frames; True cancels the decoding.

    Raises:
        MediaError: The file cannot be used, or the options do not fit it.
    """
    check_options(options, of_frames=False)
    if options.fps is None and options.num_frames is None:
        options = replace(options, num_frames=processing.num_frames)
    fps = (options.fps or processing.sampling.fps) if options.num_frames is None else None
    with _opened(data, processing.background) as video:
        frames = video.frame_times()
        shown = _selected_part(frames, options, processing.max_seconds)
        frame_indices = _frame_indices(frames, shown, options, fps, processing.sampling)
        decoded = num_decoded(frames.times, frames.keyframes, frame_indices) + frames.num_cut_away
        if decoded * video.width * video.height > MAX_DECODED_PIXELS:
            message = "the video takes too long to decode; send a shorter part of it or smaller frames"
            raise MediaError(MediaErrorCode.TOO_LARGE, message)
        return make_video(
            video.frames([frames.times[index] for index in frame_indices], frames.keyframes, stopped),
            len(frame_indices),
            processing.with_options(options),
            frame_seconds=tuple(frames.seconds(index) for index in frame_indices),
            fps=fps,
            duration_seconds=float(_duration(frames, range(len(frames.times)))),
            on_size=lambda num_bytes: on_size(num_bytes + _DECODER_BYTES * video.width * video.height),
        )


def _opened(data: bytes, background: Colour) -> AbstractContextManager[VideoFile | AnimationFile]:
    if is_image_file(data):
        return open_animation(data, max_pixels=MAX_FRAME_PIXELS, background=background)
    return open_video(data, max_pixels=MAX_FRAME_PIXELS)


def _frame_indices(
    frames: FrameTimes, shown: range, options: VideoOptions, fps: float | None, sampling: FrameSampling
) -> list[int]:
    """Returns the indices of the frames that are sampled from those shown."""
    max_frames = options.max_frames or MAX_FRAMES
    if fps is not None:
        indices = sampling.at_rate(len(shown), _duration(frames, shown), fps=fps, max_frames=max_frames)
    else:
        indices = sampling.requested(len(shown), options.num_frames or max_frames, max_frames=max_frames)
    return [shown[index] for index in indices]


def _selected_part(frames: FrameTimes, options: VideoOptions, max_seconds: float) -> range:
    """Returns the indices of the frames between the request's start and end, at most `max_seconds` apart."""
    start = options.start_seconds or 0
    end = frames.seconds(len(frames.times) - 1) if options.end_seconds is None else options.end_seconds
    inside = [index for index in range(len(frames.times)) if start <= frames.seconds(index) <= end]
    if not inside:
        seconds = float(_duration(frames, range(len(frames.times))))
        message = f"expected start_seconds and end_seconds to select a frame of the video, which lasts {seconds:g} s"
        raise MediaError(MediaErrorCode.INVALID_PARAMETER, message)
    shown = range(inside[0], inside[-1] + 1)
    if _duration(frames, shown) > max_seconds:
        message = (
            f"expected a video of at most {max_seconds:g} s, got {float(_duration(frames, shown)):g} s; "
            "select a part with start_seconds and end_seconds"
        )
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    return shown


def _duration(frames: FrameTimes, shown: range) -> Fraction:
    """Returns the seconds from the start of the first frame to the end of the last one."""
    last = shown[-1]
    last_duration = (
        frames.last_duration if last + 1 == len(frames.times) else frames.times[last + 1] - frames.times[last]
    )
    return (frames.times[last] + last_duration - frames.times[shown[0]]) * frames.unit_seconds
