"""How a checkpoint processes media of each kind."""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from glimpse.media.processing.audio import AudioProcessing
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video import VideoProcessing
from glimpse.media.processing.video_options import VideoOptions, check_options

MaxPixels = int | Literal["checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingDefaults:
    """What an operator sets for all media. The options of a request come first. None: the model family's default."""

    background: Colour = (255, 255, 255)
    """RGB color behind transparent pixels of images."""
    fast_jpeg: bool = False
    """See `ImageProcessing`."""
    min_pixels: int | None = None
    """Area of images and of frames."""
    max_pixels: MaxPixels | None = None
    """Area of images and of frames. "checkpoint": what the checkpoint's own files allow."""
    fps: float | None = None
    """Rate at which the frames of video files are sampled. Excludes `num_frames`."""
    num_frames: int | None = None
    """Number of frames that are sampled from video files."""
    max_seconds: float | None = None
    """Longest part of a video file that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcessing:
    """The parameters of each kind; None if the model does not support it."""

    images: ImageProcessing | None = None
    videos: VideoProcessing | None = None
    audio: AudioProcessing | None = None

    def with_defaults(self, defaults: ProcessingDefaults) -> "MediaProcessing":
        """Returns a copy with an operator's defaults.

        Raises:
            MediaOptionError: an option is out of range or contradicts another, or the model decides the size in pixels.
        """
        options = VideoOptions(
            fps=defaults.fps,
            num_frames=defaults.num_frames,
            min_pixels=defaults.min_pixels,
            max_pixels=None if defaults.max_pixels == "checkpoint" else defaults.max_pixels,
        )
        check_options(options, of_frames=False)
        return replace(
            self,
            images=None if self.images is None else _images(self.images, defaults),
            videos=None if self.videos is None else _videos(self.videos, defaults),
        )


def _images(images: ImageProcessing, defaults: ProcessingDefaults) -> ImageProcessing:
    max_pixels = images.checkpoint_max_pixels if defaults.max_pixels == "checkpoint" else defaults.max_pixels
    sizing = images.sizing.with_bounds(min_pixels=defaults.min_pixels, max_pixels=max_pixels)
    return replace(images, sizing=sizing, background=defaults.background, fast_jpeg=defaults.fast_jpeg)


def _videos(videos: VideoProcessing, defaults: ProcessingDefaults) -> VideoProcessing:
    max_pixels = videos.checkpoint_max_pixels if defaults.max_pixels == "checkpoint" else defaults.max_pixels
    sizing = videos.sizing.with_bounds(min_pixels=defaults.min_pixels, max_pixels=max_pixels, total_pixels=None)
    sampling = videos.sampling if defaults.fps is None else msgspec.structs.replace(videos.sampling, fps=defaults.fps)
    max_seconds = videos.max_seconds if defaults.max_seconds is None else defaults.max_seconds
    return replace(videos, sizing=sizing, sampling=sampling, num_frames=defaults.num_frames, max_seconds=max_seconds)
