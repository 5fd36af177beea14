"""Decoding of video files with FFmpeg (PyAV), one frame at a time. Independent of frame sampling and target sizes.

FFmpeg gets the bytes and nothing else. The demuxer is chosen here from the file's first bytes, so that no demuxer for
playlists or references to other files ever runs. Only listed decoders run, on frames of limited size.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.stream import Disposition

from glimpse.media.containers.decode_errors import cancelled, corrupt, report_decode_errors
from glimpse.media.containers.mp4 import checked_mp4
from glimpse.media.containers.sniff import AudioFormat, VideoFormat, sniff_video
from glimpse.media.errors import MediaError, MediaErrorCode

MAX_SOURCE_FRAMES = 250_000
"""Limit on the frames of a file: more than an hour at 60 frames per second."""
DECODERS = {
    "h264": "H.264",
    "hevc": "HEVC",
    "vp8": "VP8",
    "vp9": "VP9",
    "libdav1d": "AV1",
    "av1": "AV1",
    "mpeg4": "MPEG-4 Part 2",
    "mjpeg": "Motion JPEG",
}
"""FFmpeg decoders that may run, and the names of their codecs: what devices, browsers and OpenCV ("mp4v", "MJPG") write
and fuzzers test most. Not the rest: FFmpeg has hundreds, and most of its holes were in rare ones."""

_BEFORE_ALL = 1 << 20
"""More of any file's time units than lie between decoding its first frame and showing it."""
_COVER = Disposition.attached_pic | Disposition.timed_thumbnails
"""Streams of cover art and thumbnails."""
_CONTAINER_OPTIONS = {
    # The file is in memory, so a demuxer never has a legitimate reason to open anything.
    "protocol_whitelist": "none",
    "enable_drefs": "0",
    "max_streams": "64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTimes:
    """Presentation times of a file's frames, read without decoding, in the file's own time unit."""

    times: tuple[int, ...]
    """Times of all frames, ascending; at least one."""
    keyframes: tuple[int, ...]
    """Times of keyframes, ascending; at least one. The first may be before all frames: it was cut away."""
    num_cut_away: int = 0
    """Frames from that keyframe to the first frame, which are decoded but not shown."""
    unit_seconds: Fraction
    last_duration: int

    def seconds(self, index: int) -> float:
        """Returns the time of a frame, relative to the first."""
        return float((self.times[index] - self.times[0]) * self.unit_seconds)


class VideoFile:
    """An opened file. Frames come from its first video stream."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._container = container
        self._stream = stream
        self.width: int = stream.codec_context.width
        """In pixels, from the header. Frames may differ, within the limit of `open_video`."""
        self.height: int = stream.codec_context.height

    def frame_times(self) -> FrameTimes:
        """Reads the times of all frames, which takes a pass through the file.

        Raises:
            MediaError: INVALID_MEDIA if the file is corrupt, truncated or empty; TOO_LARGE if it has too many frames.
        """
        times, cut_away, keyframes, last = set[int](), set[int](), set[int](), (0, 0)
        with report_decode_errors("video"):
            for packet in self._container.demux(self._stream):
                if packet.size == 0:
                    continue
                time = packet.dts if packet.pts is None else packet.pts
                if packet.is_corrupt or time is None:
                    raise corrupt("video")
                if packet.is_keyframe:
                    keyframes.add(time)
                (cut_away if packet.is_discard else times).add(time)
                if not packet.is_discard:
                    last = max(last, (time, packet.duration or 0))
                if len(times) + len(cut_away) > MAX_SOURCE_FRAMES:
                    message = f"expected a video of at most {MAX_SOURCE_FRAMES} frames, got more"
                    raise MediaError(MediaErrorCode.TOO_LARGE, message)
            if not keyframes or not times:
                raise MediaError(MediaErrorCode.INVALID_MEDIA, "expected a video with decodable frames, got none")
            ordered, first = tuple(sorted(times)), min(times)
            begin = max((each for each in keyframes if each <= first), default=first)
            between = ordered[-1] - ordered[-2] if len(ordered) > 1 else 0
            return FrameTimes(
                times=ordered,
                keyframes=tuple(sorted(each for each in keyframes if each >= begin)),
                num_cut_away=sum(begin <= each < first for each in cut_away),
                unit_seconds=Fraction(self._stream.time_base),
                last_duration=last[1] if last[1] > 0 else between,
            )

    def frames(
        self, times: Sequence[int], keyframes: Sequence[int], stopped: Callable[[], bool]
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields the frame shown at each of the ascending times: upright RGB [height, width, 3], of any size.

        Raises:
            MediaError: INVALID_MEDIA if the file is corrupt, or `stopped` returns True.
        """
        with report_decode_errors("video"):
            reader = _Reader(self._container, self._stream, keyframes, stopped)
            for time in times:
                yield _upright(reader.shown_at(time))


def open_container(
    data: bytes,
    container_format: VideoFormat | AudioFormat,
    *,
    decoders: Iterable[str],
    hidden_kind: bytes,
    options: Mapping[str, str],
) -> Any:
    """Opens a file with the demuxer of its format. Raises MediaError, or an exception of FFmpeg.

    Args:
        decoders: FFmpeg decoders that may run.
        hidden_kind: See `checked_mp4`.
    """
    is_mp4 = container_format in (VideoFormat.MP4, AudioFormat.MP4)
    file = checked_mp4(data, hidden_kind=hidden_kind) if is_mp4 else BytesIO(data)
    return av.open(
        file,
        format=container_format.value,
        options={**options, "codec_whitelist": ",".join(decoders)},
        # Some demuxers, such as that of AVI, open others for what is inside.
        container_options={**_CONTAINER_OPTIONS, "format_whitelist": container_format.value},
    )


@contextmanager
def open_video(data: bytes, *, max_pixels: int) -> Generator[VideoFile]:
    """Reads a video file's header.

    Raises:
        MediaError: UNSUPPORTED_FORMAT, INVALID_MEDIA, or TOO_LARGE for frames of more than `max_pixels`.
    """
    video_format = sniff_video(data)
    limits = {"max_pixels": str(max_pixels)}
    with report_decode_errors("video"):
        container = open_container(data, video_format, decoders=DECODERS, hidden_kind=b"soun", options=limits)
    with container:
        yield VideoFile(container, _video_stream(container, max_pixels, limits))


def _video_stream(container: Any, max_pixels: int, limits: dict[str, str]) -> Any:
    stream = next((each for each in container.streams.video if not each.disposition & _COVER), None)
    if stream is None:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "expected a file with a video stream, got none")
    codec = stream.codec_context
    if codec is None or codec.name not in DECODERS:
        names = ", ".join(dict.fromkeys(DECODERS.values()))
        got = "an unknown codec" if codec is None else f"codec '{codec.name}'"
        message = f"expected a video of one of the codecs {names}, got {got}"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    if container.format.name == VideoFormat.AVI and codec.has_b_frames:
        message = "expected an AVI file without B-frames, which has no times for them; convert it to MP4"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    if not codec.width * codec.height:  # the decoder refused a frame for its size, or saw none
        message = f"expected frames from 1 to {max_pixels} pixels, got frames of no or larger size"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    if codec.width * codec.height > max_pixels:
        message = f"expected frames of at most {max_pixels} pixels, got {codec.width}×{codec.height}"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    # Headers may be wrong, so the decoder refuses larger frames too.
    codec.options = limits
    codec.thread_count = 1
    return stream


class _Reader:
    """Decodes forward through the frames, and seeks to a keyframe if there is one on the way."""

    def __init__(self, container: Any, stream: Any, keyframes: Sequence[int], stopped: Callable[[], bool]) -> None:
        self._container = container
        self._stream = stream
        self._keyframes = keyframes
        self._stopped = stopped
        self._frames: Iterator[Any] = iter(())
        self._shown: Any = None
        self._ahead: Any = None

    def shown_at(self, time: int) -> Any:
        """Returns the last frame that begins at or before the time; the first frame, if all begin later."""
        keyframe = self._keyframes[max(bisect_right(self._keyframes, time) - 1, 0)]
        if self._shown is None or self._shown.pts < keyframe <= time:
            self._seek(keyframe)
        while self._shown is None or self._shown.pts < time:
            frame = self._next()
            if frame is None:
                break
            if frame.pts > time and self._shown is not None:
                self._ahead = frame
                break
            self._shown = frame
        if self._shown is None:
            raise corrupt("video")
        return self._shown

    def _seek(self, keyframe: int) -> None:
        """Goes to a keyframe, or before it: demuxers that seek by times of decoding may find a later one."""
        last, back = bisect_right(self._keyframes, keyframe) - 1, 0
        while True:
            start = self._keyframes[last - back] if back <= last else self._keyframes[0] - _BEFORE_ALL
            self._container.seek(start, stream=self._stream)
            self._frames = self._container.decode(self._stream)
            self._shown, self._ahead = None, next(self._frames, None)
            if self._ahead is None or self._ahead.pts <= keyframe or back > last:
                return
            back = 2 * back + 1

    def _next(self) -> Any:
        if self._stopped():
            raise cancelled("video")
        frame, self._ahead = self._ahead or next(self._frames, None), None
        return frame


def _upright(frame: Any) -> npt.NDArray[np.uint8]:
    pixels = frame.to_ndarray(format="rgb24")  # [height, width, 3]
    turns = round(frame.rotation / 90) % 4  # quarters, counter-clockwise
    return np.rot90(pixels, turns)
