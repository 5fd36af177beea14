"""Video preprocessing like Qwen2-VL's: resized uint8 frames, grid of patches and content key.

Frames arrive one at a time, from any source, and their memory is allocated in advance. The engine normalizes the pixels
and cuts them into patches.
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
from glimpse.media.pixels import RgbImage, image_size
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
    """A checkpoint's video preprocessing parameters, by default Qwen2-VL's."""

    patch_size: int = 14
    """Side of a patch in pixels."""
    merge_size: int = 2
    """Side of a token in patches."""
    temporal_patch_size: int = 2
    """Frames per patch; the last frame is repeated to fill it."""
    min_pixels: int = DEFAULT_MIN_PIXELS
    """Area in pixels to which smaller frames are enlarged."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Area in pixels to which larger frames are reduced."""
    total_pixels: int = DEFAULT_TOTAL_PIXELS
    """Limit on the area of all frames together, where the frames of a patch count as one; see `frame_max_pixels`."""
    background: Colour = (255, 255, 255)
    """RGB color behind transparent pixels of frames that are images."""

    def with_options(self, options: VideoOptions) -> "VideoProcessing":
        """Returns a copy with a request's bounds. Raises MediaError (INVALID_PARAMETER)."""
        lower, upper = request_bounds(
            self.min_pixels, self.max_pixels, min_pixels=options.min_pixels, max_pixels=options.max_pixels
        )
        return replace(self, min_pixels=lower, max_pixels=upper, total_pixels=options.total_pixels or self.total_pixels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Video:
    """A preprocessed video."""

    kind: MediaKind = field(default=MediaKind.VIDEO, init=False)
    pixels: npt.NDArray[np.uint8]
    """RGB [frames, height, width, 3], resized. The engine repeats the last frame to fill a patch."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging."""
    num_tokens: int
    """Prompt tokens that the video takes."""
    key: bytes
    """Content key: SHA-256 of the pixels and the patch parameters."""
    frame_seconds: tuple[float, ...]
    """Presentation time of each frame, relative to the first frame of the file; empty if the frames have no times."""
    fps: float | None
    """Sampling rate; None if the number of frames was given, or all frames are used."""

    @property
    def seconds_per_frame(self) -> float | None:
        """Mean time between frames; None if the frames have no times, or there is only one."""
        if len(self.frame_seconds) < 2:
            return None
        return (self.frame_seconds[-1] - self.frame_seconds[0]) / (len(self.frame_seconds) - 1)


def video_processing(path: Path) -> VideoProcessing:
    """Reads a checkpoint's `video_preprocessor_config.json`; without one, the reference's defaults apply.

    The pixel bounds in `preprocessor_config.json` apply to images only.

    Raises:
        ValueError: A file is not JSON, or has unsupported values.
    """
    own_path = path / "video_preprocessor_config.json"
    own = read_json(own_path) if own_path.exists() else {}
    check_resampling(own)
    config = read_json(path / "preprocessor_config.json")
    for name in ("image_mean", "image_std"):
        if name in own and own[name] != config.get(name):
            raise ValueError(f"{own_path.name}: expected the {name} of preprocessor_config.json, got {own[name]!r}")
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
    )


def make_video(
    frames: Iterable[RgbImage],
    num_frames: int,
    processing: VideoProcessing,
    *,
    frame_seconds: tuple[float, ...],
    fps: float | None,
) -> Video:
    """Resizes frames. The target size follows from the first frame's size and the number of frames.

    Args:
        frames: Upright images. Each is used before the next is requested.
        num_frames: Number of frames, at least 1.
        processing: Parameters with the request's bounds.
        frame_seconds: As in `Video`.
        fps: As in `Video`.

    Raises:
        MediaError: The frames are too elongated, or too large in total; or from `frames`.
    """
    iterator = iter(frames)
    first = next(iterator)
    pixels = _allocate(num_frames, *image_size(first), processing)
    resize(first, into=pixels[0])
    for index, frame in enumerate(iterator, 1):
        resize(frame, into=pixels[index])
    return video_from_pixels(pixels, processing, frame_seconds=frame_seconds, fps=fps)


def video_from_pixels(
    pixels: npt.NDArray[np.uint8], processing: VideoProcessing, *, frame_seconds: tuple[float, ...], fps: float | None
) -> Video:
    """Adds grid, token count and content key to resized frames. The arguments are as in `Video` and `make_video`."""
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
    """Returns uint8 [frames, height, width, 3] for frames of this size before resizing."""
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
            f"expected at most {depth * LARGEST_TOTAL_PIXELS} pixels after resizing, got {num_frames} frames "
            f"of {width}×{height} pixels; sample fewer frames (fps, max_frames) or reduce min_pixels and max_pixels"
        )
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    return np.empty((num_frames, height, width, 3), np.uint8)
