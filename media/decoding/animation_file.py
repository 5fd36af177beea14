"""Animated images as videos: frames decoded with Pillow, at the times that the delays between them say.

An `AnimationFile` has the members of `glimpse.media.containers.video.VideoFile`.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import PIL.Image

from glimpse.media.containers.animation import ANIMATED_FORMATS, is_animated
from glimpse.media.containers.decode_errors import cancelled, corrupt, report_decode_errors
from glimpse.media.containers.sniff import find_format, spelling
from glimpse.media.containers.still import open_frames
from glimpse.media.containers.video import FrameTimes
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.rgb import Colour, upright_rgb

MAX_PIXELS = 1_000_000_000
"""Limit on the pixels of all frames, which are decoded twice: up to a minute of CPU time."""
_MIN_FRAME_PIXELS = 10_000
"""Pixels that a smaller frame counts for."""
_SHORTEST_MS, _DEFAULT_MS = 10, 100
"""Browsers replace delays up to the first number of milliseconds, 0 in particular, by the second."""


class AnimationFile:
    """An opened image of several frames."""

    def __init__(self, image: PIL.Image.Image, background: Colour) -> None:
        """`background` is the color behind transparent pixels. Raises MediaError, or any exception of Pillow."""
        self._image = image
        self._background = background
        self.width, self.height = image.size
        # The default image of a PNG may be for programs that cannot show the animation.
        self._first = int(bool(image.info.get("default_image")))
        self._num_frames = getattr(image, "n_frames", 1) - self._first
        self._starts: list[int] = []
        if self._num_frames * max(self.width * self.height, _MIN_FRAME_PIXELS) > MAX_PIXELS:
            message = f"expected an animation of at most {MAX_PIXELS} pixels, all frames together"
            got = f"{self._num_frames} frames of {self.width}×{self.height}"
            raise MediaError(MediaErrorCode.TOO_LARGE, f"{message}, got {got}; send it as MP4")

    def frame_times(self) -> FrameTimes:
        """Reads the times of all frames, which takes decoding them. Raises MediaError: INVALID_MEDIA."""
        with report_decode_errors("animation"):
            delays = [self._delay(index) for index in range(self._num_frames)]
        self._starts = [0, *accumulate(delays[:-1])]
        times = tuple(self._starts)
        return FrameTimes(
            times=times, keyframes=times[:1], unit_seconds=Fraction(1, 1000), last_duration=max(delays[-1], 1)
        )

    def frames(
        self,
        times: Sequence[int],
        keyframes: Sequence[int],  # noqa: ARG002 - as in VideoFile
        stopped: Callable[[], bool],
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields the frames that begin at these ascending times, of `frame_times`: upright RGB [height, width, 3].

        Raises:
            MediaError: INVALID_MEDIA if the file is corrupt, or `stopped` returns True.
        """
        with report_decode_errors("animation"):
            for time in times:
                if stopped():
                    raise cancelled("animation")
                self._load(self._starts.index(time))
                yield np.asarray(upright_rgb(self._image, self._background))

    def _delay(self, index: int) -> int:
        self._load(index)
        delay = round(self._image.info.get("duration") or 0)
        return _DEFAULT_MS if delay <= _SHORTEST_MS else delay

    def _load(self, index: int) -> None:
        self._image.seek(self._first + index)
        if self._image.size != (self.width, self.height):  # a frame outside of the canvas enlarges it
            raise corrupt("animation")
        self._image.load()


def is_image_file(data: bytes) -> bool:
    """Returns whether a file has a format of images that may be animated."""
    return find_format(data) in ANIMATED_FORMATS


@contextmanager
def open_animation(data: bytes, *, max_pixels: int, background: Colour) -> Generator[AnimationFile]:
    """Reads the header of an animated image.

    Raises:
        MediaError: INVALID_MEDIA, TOO_LARGE for frames of more than `max_pixels`, or UNSUPPORTED_FORMAT for one frame.
    """
    image = open_frames(data, max_pixels=max_pixels)
    with report_decode_errors("animation"):
        if not is_animated(image):
            title = spelling(image.format)
            message = f"expected a video, got a {title} of one frame; send it as an image"
            raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
        animation = AnimationFile(image, background)
    yield animation
