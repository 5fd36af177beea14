"""A clip as the engine takes it: frames of one size, their grid of patches, their content key.

Knows Qwen2-VL's processing of videos up to the point where numbers become floats. Frames come one at a time, whatever
they come from, and what they take in memory is known before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.key import content_key
from glimpse.media.kind import MediaKind
from glimpse.media.pixels import RgbImage, size_of
from glimpse.media.processing.preprocessor import check_resampling, positive, read_json
from glimpse.media.processing.resize import resize
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.smart_resize import frame_max_pixels, request_bounds, smart_resize
from glimpse.media.processing.video_options import LARGEST_TOTAL_PIXELS, VideoOptions

DEFAULT_MIN_PIXELS = 128 * 28 * 28
DEFAULT_MAX_PIXELS = 768 * 28 * 28
DEFAULT_TOTAL_PIXELS = 24576 * 28 * 28


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoProcessing:
    """How a checkpoint wants its clips."""

    patch_size: int
    """Pixels of a patch's side."""
    merge_size: int
    """Patches of a side that become one token."""
    temporal_patch_size: int
    """Frames of a patch; the last one is repeated to fill it."""
    min_pixels: int
    """Smaller frames are enlarged to this area."""
    max_pixels: int
    """Larger frames are reduced to this area."""
    total_pixels: int
    """Frames are reduced until all have this area, those of a patch counted as one; but see `frame_max_pixels`."""
    background: Colour = (255, 255, 255)
    """What shows through where a picture that is a frame is transparent."""

    def with_options(self, options: VideoOptions) -> "VideoProcessing":
        """The same with a request's own bounds. Raises MediaError (INVALID_PARAMETER)."""
        lower, upper = request_bounds(
            self.min_pixels, self.max_pixels, min_pixels=options.min_pixels, max_pixels=options.max_pixels
        )
        return replace(self, min_pixels=lower, max_pixels=upper, total_pixels=options.total_pixels or self.total_pixels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """A video that is ready for the engine."""

    kind: MediaKind = field(default=MediaKind.VIDEO, init=False)
    pixels: npt.NDArray[np.uint8]
    """[frames, height, width, 3], RGB, resized. The engine repeats the last frame where a patch in time wants more."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging."""
    num_tokens: int
    """Tokens that it takes in a prompt."""
    key: bytes
    """SHA-256 of the pixels and of how they become patches."""
    frame_seconds: tuple[float, ...]
    """When each frame is shown, from the clip's beginning; empty where the clip has no times."""
    fps: float | None
    """The rate at which frames were taken; None where their number was said, or they are all there are."""

    @property
    def seconds_per_frame(self) -> float | None:
        """From one frame to the next, on average; None where the clip has no times, or a single frame."""
        if len(self.frame_seconds) < 2:
            return None
        return (self.frame_seconds[-1] - self.frame_seconds[0]) / (len(self.frame_seconds) - 1)


def video_processing(path: Path) -> VideoProcessing:
    """Reads a checkpoint's `video_preprocessor_config.json`; without one, the reference's defaults hold.

    (The pixel bounds in `preprocessor_config.json` are for pictures.)

    Raises:
        ValueError: a file is damaged, or asks for what is not done here.
    """
    own_path = path / "video_preprocessor_config.json"
    own = read_json(own_path) if own_path.exists() else {}
    check_resampling(own)
    config = read_json(path / "preprocessor_config.json")
    for name in ("image_mean", "image_std"):
        if name in own and own[name] != config.get(name):
            raise ValueError(f"the preprocessor's configuration has another {name} for videos than for pictures")
    config |= own
    size: Mapping[str, Any] = own.get("size") or {}
    max_pixels = own.get("max_pixels") or size.get("longest_edge") or DEFAULT_MAX_PIXELS
    max_pixels = min(positive("max_pixels", max_pixels), DEFAULT_MAX_PIXELS)
    min_pixels = own.get("min_pixels") or size.get("shortest_edge") or DEFAULT_MIN_PIXELS
    return VideoProcessing(
        patch_size=positive("patch_size", config.get("patch_size", 14)),
        merge_size=positive("merge_size", config.get("merge_size", 2)),
        temporal_patch_size=positive("temporal_patch_size", config.get("temporal_patch_size", 2)),
        min_pixels=min(positive("min_pixels", min_pixels), max_pixels),
        max_pixels=max_pixels,
        total_pixels=DEFAULT_TOTAL_PIXELS,
    )


def make_video(
    frames: Iterable[RgbImage],
    num_frames: int,
    processing: VideoProcessing,
    *,
    frame_seconds: tuple[float, ...],
    fps: float | None,
) -> Video:
    """Resizes frames to the size that the first of them and their number ask for.

    Args:
        frames: upright pictures, of which each is used before the next is asked for.
        num_frames: how many they are, at least 1.
        processing: with the request's bounds.
        frame_seconds: as in `Video`.
        fps: as in `Video`.

    Raises:
        MediaError: the frames are too long for their width, or too large together; or what `frames` raises.
    """
    iterator = iter(frames)
    first = next(iterator)
    pixels = _allocate(num_frames, *size_of(first), processing)
    resize(first, into=pixels[0])
    for index, frame in enumerate(iterator, 1):
        resize(frame, into=pixels[index])
    return video_from_pixels(pixels, processing, frame_seconds=frame_seconds, fps=fps)


def video_from_pixels(
    pixels: npt.NDArray[np.uint8], processing: VideoProcessing, *, frame_seconds: tuple[float, ...], fps: float | None
) -> Video:
    """Names the clip whose frames are resized already; the arguments are as in `Video` and `make_video`."""
    num_frames, height, width, _ = pixels.shape
    depth = processing.temporal_patch_size
    grid_thw = (-(-num_frames // depth), height // processing.patch_size, width // processing.patch_size)
    return Video(
        pixels=pixels,
        grid_thw=grid_thw,
        num_tokens=grid_thw[0] * grid_thw[1] * grid_thw[2] // processing.merge_size**2,
        key=content_key("video", pixels, processing.patch_size, processing.merge_size, depth),
        frame_seconds=frame_seconds,
        fps=fps,
    )


def _allocate(num_frames: int, height: int, width: int, processing: VideoProcessing) -> npt.NDArray[np.uint8]:
    """uint8 [frames, height, width, 3] for frames that are this high and wide before they are resized."""
    depth = processing.temporal_patch_size
    max_pixels = frame_max_pixels(
        num_frames,
        min_pixels=processing.min_pixels,
        max_pixels=processing.max_pixels,
        total_pixels=processing.total_pixels,
        depth=depth,
    )
    factor = processing.patch_size * processing.merge_size
    height, width = smart_resize(height, width, factor=factor, min_pixels=processing.min_pixels, max_pixels=max_pixels)
    if num_frames * height * width > depth * LARGEST_TOTAL_PIXELS:
        message = (
            f"{num_frames} frames of {width}×{height} pixels are more than a clip may have after resizing; "
            "take fewer frames (fps, max_frames), or smaller ones (min_pixels, max_pixels)"
        )
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    return np.empty((num_frames, height, width, 3), np.uint8)
