"""A video file's bytes → its frames, one at a time. Knows containers, codecs and time; no sampling and no sizes.

FFmpeg (through PyAV) gets the bytes and nothing else: the demuxer is named by us from the file's first bytes, so none
that reads playlists or opens other files is ever tried; only listed decoders run, on frames of bounded size.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.stream import Disposition

from glimpse.media.containers.decode_errors import corrupt, report_decode_errors
from glimpse.media.containers.mp4 import checked_mp4
from glimpse.media.containers.sniff import VideoFormat, sniff_video
from glimpse.media.errors import MediaError, MediaErrorCode

MAX_SOURCE_FRAMES = 250_000
"""The most frames of a file: an hour and more at 60 a second."""
DECODERS = {"h264": "H.264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9", "libdav1d": "AV1", "av1": "AV1"}
"""Decoders that may run, and the names of what they decode."""

_COVER = Disposition.attached_pic | Disposition.timed_thumbnails
"""Pictures about the video."""
_DEMUXERS = {VideoFormat.MP4: "mov", VideoFormat.MATROSKA: "matroska"}
CONTAINER_OPTIONS = {
    # The file is in memory: there is nothing that a demuxer could rightly want to open.
    "protocol_whitelist": "none",
    "enable_drefs": "0",
    "max_streams": "64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTimes:
    """When a file's frames are shown, found without decoding any. Times are in units of the file's own."""

    times: tuple[int, ...]
    """Of all frames that are shown, ascending; at least one."""
    keyframes: tuple[int, ...]
    """Of frames that can be decoded without others, ascending; at least one."""
    unit_seconds: Fraction
    last_duration: int
    """How long the last frame is shown."""

    def seconds(self, index: int) -> float:
        """When a frame is shown, from the first one's time."""
        return float((self.times[index] - self.times[0]) * self.unit_seconds)


class VideoFile:
    """An opened file, of whose first video stream frames are decoded."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._container = container
        self._stream = stream
        self.width: int = stream.codec_context.width
        """Pixels, as the header has it; frames may be otherwise, within the bound of `open_video`."""
        self.height: int = stream.codec_context.height

    def frame_times(self) -> FrameTimes:
        """Reads through the file.

        Raises:
            MediaError: INVALID_MEDIA if it is damaged, cut short or empty; TOO_LARGE if it has too many frames.
        """
        times, keyframes, last = set[int](), set[int](), (0, 0)
        with report_decode_errors("video"):
            for packet in self._container.demux(self._stream):
                if packet.size == 0 or packet.is_discard:
                    continue
                time = packet.dts if packet.pts is None else packet.pts
                if packet.is_corrupt or time is None:
                    raise corrupt("video")
                times.add(time)
                last = max(last, (time, packet.duration or 0))
                if packet.is_keyframe:
                    keyframes.add(time)
                if len(times) > MAX_SOURCE_FRAMES:
                    raise MediaError(MediaErrorCode.TOO_LARGE, f"the clip has more than {MAX_SOURCE_FRAMES} frames")
            if not keyframes:
                raise MediaError(MediaErrorCode.INVALID_MEDIA, "the clip has no frames that can be decoded")
            ordered = tuple(sorted(times))
            between = ordered[-1] - ordered[-2] if len(ordered) > 1 else 0
            return FrameTimes(
                times=ordered,
                keyframes=tuple(sorted(keyframes)),
                unit_seconds=Fraction(self._stream.time_base),
                last_duration=last[1] if last[1] > 0 else between,
            )

    def frames(
        self, times: Sequence[int], keyframes: Sequence[int], stopped: Callable[[], bool]
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """For each of these times, which ascend, the frame shown at it: [height, width, 3], RGB, upright, of any size.

        Raises:
            MediaError: INVALID_MEDIA if the file is damaged, or nobody waits for it any more (`stopped`).
        """
        with report_decode_errors("video"):
            reader = _Reader(self._container, self._stream, keyframes, stopped)
            for time in times:
                yield _upright(reader.shown_at(time))


@contextmanager
def open_video(data: bytes, *, max_pixels: int) -> Generator[VideoFile]:
    """Reads a video file's header.

    Raises:
        MediaError: UNSUPPORTED_FORMAT, INVALID_MEDIA, or TOO_LARGE for frames of more than `max_pixels`.
    """
    video_format = sniff_video(data)
    file = checked_mp4(data) if video_format is VideoFormat.MP4 else BytesIO(data)
    limits = {"max_pixels": str(max_pixels)}
    with report_decode_errors("video"):
        container = av.open(
            file,
            format=_DEMUXERS[video_format],
            options=limits | {"codec_whitelist": ",".join(DECODERS)},
            container_options=CONTAINER_OPTIONS,
        )
    try:
        yield VideoFile(container, _video_stream(container, max_pixels, limits))
    finally:
        container.close()


def _video_stream(container: Any, max_pixels: int, limits: dict[str, str]) -> Any:
    stream = next((each for each in container.streams.video if not each.disposition & _COVER), None)
    if stream is None:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "there is no video in the file")
    codec = stream.codec_context
    if codec is None or codec.name not in DECODERS:
        names = ", ".join(dict.fromkeys(DECODERS.values()))
        raise MediaError(
            MediaErrorCode.UNSUPPORTED_FORMAT, f"the video is of a codec that is not decoded; decoded are {names}"
        )
    if not codec.width * codec.height:  # a decoder that refused a frame for its size, or saw none
        message = f"the clip's frames have no size, or one of more than the {max_pixels} pixels that are decoded"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    if codec.width * codec.height > max_pixels:
        message = f"the clip's frames are {codec.width}×{codec.height} pixels; at most {max_pixels} pixels are decoded"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    # A header may lie: the decoder, too, refuses larger frames.
    codec.options = limits
    codec.thread_count = 1
    return stream


class _Reader:
    """Walks forward through the frames, and skips to a keyframe where there is one on the way."""

    def __init__(self, container: Any, stream: Any, keyframes: Sequence[int], stopped: Callable[[], bool]) -> None:
        self._container = container
        self._stream = stream
        self._keyframes = keyframes
        self._stopped = stopped
        self._frames: Iterator[Any] = iter(())
        self._shown: Any = None
        self._ahead: Any = None

    def shown_at(self, time: int) -> Any:
        """The last frame that begins at or before the time; the first, if all begin later."""
        keyframe = self._keyframes[max(bisect_right(self._keyframes, time) - 1, 0)]
        if self._shown is None or self._shown.pts < keyframe <= time:
            self._skip_to(keyframe)
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

    def _skip_to(self, keyframe: int) -> None:
        self._container.seek(keyframe, stream=self._stream)
        self._frames = self._container.decode(self._stream)
        self._shown = self._ahead = None

    def _next(self) -> Any:
        if self._stopped():
            raise MediaError(MediaErrorCode.INVALID_MEDIA, "nobody waits for the clip any more")
        frame, self._ahead = self._ahead or next(self._frames, None), None
        return frame


def _upright(frame: Any) -> npt.NDArray[np.uint8]:
    pixels = frame.to_ndarray(format="rgb24")  # [height, width, 3]
    turns = round(frame.rotation / 90) % 4  # quarters, counter-clockwise
    return np.rot90(pixels, turns)
