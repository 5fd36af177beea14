"""Video preprocessing: resized uint8 frames, as the recipe of the model family says, their grid and content key.

Frames arrive one at a time, from any source, and their memory is allocated in advance. The engine normalizes the pixels
and cuts them into patches.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from PIL.Image import Resampling

from glimpse.media.key import content_key
from glimpse.media.kind import MediaKind
from glimpse.media.limits import MAX_VIDEO_SECONDS
from glimpse.media.pixels import RgbImage, image_size
from glimpse.media.processing.frame_sampling import EndpointSampling, FrameSampling, PatchSampling
from glimpse.media.processing.preprocessor import (
    VIDEO_PREPROCESSOR,
    positive,
    read_image_processor,
    read_video_processor,
)
from glimpse.media.processing.render import render_view
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.sizing.patches.budget_frames import BudgetFrames
from glimpse.media.processing.sizing.scaled_frames import ScaledFrames
from glimpse.media.processing.sizing.smart_frames import DEFAULT_MAX_PIXELS, DEFAULT_MIN_PIXELS, SmartFrames
from glimpse.media.processing.sizing.smart_resize import LARGEST_MAX_PIXELS
from glimpse.media.processing.sizing.square_frames import SquareFrames
from glimpse.media.processing.sizing.volume_frames import VolumeFrames
from glimpse.media.processing.video_options import VideoOptions

VideoSizing: TypeAlias = SmartFrames | VolumeFrames | SquareFrames | ScaledFrames | BudgetFrames
"""The recipes of all families: a closed union, since decoding workers parse it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoProcessing:
    """A checkpoint's video preprocessing parameters, by default Qwen2-VL's."""

    sizing: VideoSizing = field(default_factory=SmartFrames)
    resampling: Resampling = Resampling.BICUBIC
    """Filter for resizing: BILINEAR, BICUBIC or LANCZOS."""
    sampling: FrameSampling = field(default_factory=PatchSampling)
    num_frames: int | None = None
    """Number of frames to sample from a file by default; None: as many as the rate of `sampling` gives."""
    max_seconds: float = MAX_VIDEO_SECONDS
    """Longest part of a file that is read."""
    background: Colour = (255, 255, 255)
    """RGB color behind transparent pixels of frames that are images."""
    checkpoint_max_pixels: int | None = None
    """The bound in the checkpoint's own file, if `sizing` has a lower one."""

    def with_options(self, options: VideoOptions) -> "VideoProcessing":
        """Returns a copy with a request's bounds. Raises MediaError (INVALID_PARAMETER)."""
        sizing = self.sizing.with_bounds(
            min_pixels=options.min_pixels, max_pixels=options.max_pixels, total_pixels=options.total_pixels
        )
        return replace(self, sizing=sizing)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """A preprocessed video."""

    kind: MediaKind = field(default=MediaKind.VIDEO, init=False)
    pixels: npt.NDArray[np.uint8]
    """RGB [frames, height, width, 3], resized. The engine repeats the last frame to fill a patch."""
    grid: tuple[int, ...]
    """Grid of the recipe. Qwen's: patches in time, height and width, before merging."""
    key: bytes
    """Content key: SHA-256 of the pixels and of the recipe's parameters for the encoder."""
    frame_seconds: tuple[float, ...]
    """Presentation time of each frame, relative to the first frame of the file; empty if the frames have no times."""
    fps: float | None
    """Sampling rate; None if the number of frames was given, or all frames are used."""
    duration_seconds: float | None = None
    """Duration of the file, including its last frame's; None for a list of frames."""

    @property
    def seconds_per_frame(self) -> float | None:
        """Mean time between frames; None if the frames have no times, or there is only one."""
        if len(self.frame_seconds) < 2:
            return None
        return (self.frame_seconds[-1] - self.frame_seconds[0]) / (len(self.frame_seconds) - 1)

    def times(self, fps: float, most: float) -> list[float]:
        """Returns the seconds of each frame as prompts tell them.

        Args:
            fps: rate of frames that have no times.
            most: what later times are written as: requests may set any frame rate, and those would have many digits.
        """
        seconds = self.frame_seconds or [index / fps for index in range(len(self.pixels))]
        return [min(each, most) for each in seconds]


def video_processing(path: Path) -> VideoProcessing:
    """Reads Qwen's `video_preprocessor_config.json`; without one, the reference's defaults apply.

    The pixel bounds in `preprocessor_config.json` apply to images only.

    Raises:
        ValueError: A file is not JSON, or has unsupported values.
    """
    own, config = _read_files(path)
    size: Mapping[str, Any] = own.get("size") or {}
    own_max = own.get("max_pixels") or size.get("longest_edge") or DEFAULT_MAX_PIXELS
    max_pixels = min(positive("max_pixels", own_max), DEFAULT_MAX_PIXELS)
    min_pixels = own.get("min_pixels") or size.get("shortest_edge") or DEFAULT_MIN_PIXELS
    sizing = SmartFrames(
        patch_size=positive("patch_size", config.get("patch_size", 14)),
        merge_size=positive("merge_size", config.get("merge_size", 2)),
        temporal_patch_size=positive("temporal_patch_size", config.get("temporal_patch_size", 2)),
        min_pixels=min(positive("min_pixels", min_pixels), max_pixels),
        max_pixels=max_pixels,
    )
    return VideoProcessing(
        sizing=sizing,
        sampling=PatchSampling(depth=sizing.temporal_patch_size),
        checkpoint_max_pixels=min(own_max, LARGEST_MAX_PIXELS) if own_max > max_pixels else None,
    )


def volume_video_processing(path: Path) -> VideoProcessing:
    """Reads Qwen3-VL's `video_preprocessor_config.json`, whose bounds are on the volume of all frames.

    Fields that the file leaves out have the defaults of the reference (transformers,
    models/qwen3_vl/video_processing_qwen3_vl.py).

    Raises:
        ValueError: A file is missing, is not JSON, or has unsupported values.
    """
    own, config = _read_files(path)
    if own.get("num_frames") is not None or own.get("do_sample_frames", True) is not True:
        raise ValueError(f"{VIDEO_PREPROCESSOR}: expected sampling at a rate, without 'num_frames'")
    max_frame_tokens = positive("max_video_tokens", own.get("max_video_tokens", 768))
    cap = max_frame_tokens if own.get("cap_pixels_per_frame") else None
    sizing = _volume_frames(own, config, VolumeFrames(max_frame_tokens=cap))
    sampling = EndpointSampling(
        fps=float(own.get("fps") or 2),
        min_frames=positive("min_frames", own.get("min_frames", 4)),
        max_frames=positive("max_frames", own.get("max_frames", 768)),
    )
    return VideoProcessing(sizing=sizing, sampling=sampling)


def sampled_video_processing(
    path: Path, read_sampling: Callable[[Mapping[str, Any]], FrameSampling]
) -> VideoProcessing:
    """Reads GLM's `video_preprocessor_config.json`, whose bounds are on the volume of all frames, too.

    Fields that the file leaves out have the defaults of the reference (transformers,
    models/glm4v/video_processing_glm4v.py). It may name a number of frames, which the reference ignores.

    Args:
        read_sampling: Reads how frames are sampled from the file's fields.

    Raises:
        ValueError: A file is missing, is not JSON, or has unsupported values.
    """
    own, config = _read_files(path)
    default = VolumeFrames(patch_size=14, min_volume=112 * 112, max_volume=2 * 30_000 * 28 * 28)
    return VideoProcessing(sizing=_volume_frames(own, config, default), sampling=read_sampling(own))


def _volume_frames(own: Mapping[str, Any], config: Mapping[str, Any], default: VolumeFrames) -> VolumeFrames:
    """Reads the sizes of frames. Fields that the files leave out, and those that no file has, are the default's."""
    size: Mapping[str, Any] = own.get("size") or {}
    return msgspec.structs.replace(
        default,
        patch_size=positive("patch_size", config.get("patch_size", default.patch_size)),
        merge_size=positive("merge_size", config.get("merge_size", default.merge_size)),
        temporal_patch_size=positive(
            "temporal_patch_size", config.get("temporal_patch_size", default.temporal_patch_size)
        ),
        min_volume=positive("size.shortest_edge", size.get("shortest_edge", default.min_volume)),
        max_volume=positive("size.longest_edge", size.get("longest_edge", default.max_volume)),
    )


def _read_files(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns a checkpoint's own fields for videos, {} without any, and these over the fields for images."""
    images = read_image_processor(path)
    own = read_video_processor(path, images)
    return own, images | own


def make_video(
    frames: Iterable[RgbImage],
    num_frames: int,
    processing: VideoProcessing,
    *,
    frame_seconds: tuple[float, ...],
    fps: float | None,
    duration_seconds: float | None = None,
    on_size: Callable[[int], None] = lambda _: None,
) -> Video:
    """Resizes frames. The target size follows from the first frame's size and the number of frames.

    Args:
        frames: Upright images. Each is used before the next is requested.
        num_frames: Number of frames, at least 1.
        processing: Parameters with the request's bounds.
        on_size: Called with the memory that all takes, once the first frame is known; may raise MediaError.

    Raises:
        MediaError: The frames are too elongated, or too large in total; or from `frames`.
    """
    iterator = iter(frames)
    first = next(iterator)
    height, width = image_size(first)
    view = processing.sizing.plan(num_frames, height, width)
    on_size(3 * (num_frames * math.prod(view.whole) + height * width))
    pixels = np.empty((num_frames, *view.whole, 3), np.uint8)
    for index, frame in enumerate(chain([first], iterator)):
        render_view(frame, view, pixels[index : index + 1], processing.resampling)
    return video_from_pixels(
        pixels, processing, frame_seconds=frame_seconds, fps=fps, duration_seconds=duration_seconds
    )


def video_from_pixels(
    pixels: npt.NDArray[np.uint8],
    processing: VideoProcessing,
    *,
    frame_seconds: tuple[float, ...],
    fps: float | None,
    duration_seconds: float | None = None,
) -> Video:
    """Adds grid and content key to resized frames. The arguments are as in `Video` and `make_video`."""
    num_frames, height, width, _ = pixels.shape
    sizing = processing.sizing
    times = sizing.times(frame_seconds)
    return Video(
        pixels=pixels,
        grid=(*sizing.grid(num_frames, height, width), *times),
        key=content_key("video", pixels, *sizing.key_parameters, *times),
        frame_seconds=frame_seconds,
        fps=fps,
        duration_seconds=duration_seconds,
    )
