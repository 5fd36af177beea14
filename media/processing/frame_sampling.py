"""Sampling of video frames, like Qwen2-VL's. Pure arithmetic, independent of files and pixels.

The formulas are those of `sample_frames` in the video processor of transformers: sampling at a rate gives at least 4
frames, at most 768, no more than the video has, and a multiple of the frames per patch. Frames are evenly spaced and
include the first. Where the reference has no result (a video of one frame, or more frames requested than there are),
the nearest possible number is used.
"""

from collections.abc import Sequence
from fractions import Fraction

DEFAULT_FPS = 1.0
MIN_FRAMES = 4
MAX_FRAMES = 768


def num_frames_at_rate(
    num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int = MAX_FRAMES, depth: int
) -> int:
    """Returns how many frames to sample at a rate.

    Args:
        num_frames: Frames of the video, at least 1.
        duration_seconds: Duration of the video, including its last frame's.
        fps: Frames to sample per second.
        max_frames: Limit on the number of sampled frames.
        depth: Frames per patch.
    """
    most = min(max_frames, num_frames) // depth * depth
    wanted = min(max(duration_seconds * Fraction(fps), MIN_FRAMES), most)
    return _at_least_one_patch(int(wanted) // depth * depth, num_frames, depth)


def num_frames_requested(num_frames: int, wanted: int, *, max_frames: int = MAX_FRAMES, depth: int) -> int:
    """Returns how many frames to sample if `wanted` are requested. The other arguments are as above."""
    most = min(max_frames, num_frames) // depth * depth
    return _at_least_one_patch(min(round(wanted / depth) * depth, most), num_frames, depth)


def evenly_spaced(num_frames: int, num_sampled: int) -> list[int]:
    """Returns the indices of `num_sampled` of `num_frames` frames, evenly spaced, starting with the first."""
    return [index * num_frames // num_sampled for index in range(num_sampled)]


def num_decoded(times: Sequence[int], keyframes: Sequence[int], frame_indices: Sequence[int]) -> int:
    """Returns how many frames must be decoded to get the sampled ones, seeking to keyframes where that is shorter.

    Args:
        times: Times of all frames, ascending.
        keyframes: Times of the keyframes, ascending.
        frame_indices: Sampled indices into `times`, ascending.
    """
    is_keyframe = set(keyframes)
    decoded, position = 0, -1
    for index in frame_indices:
        start = index
        while start > position + 1 and times[start] not in is_keyframe:
            start -= 1
        decoded += index + 1 - start if index > position else 0
        position = max(position, index)
    return decoded


def _at_least_one_patch(number: int, num_frames: int, depth: int) -> int:
    return max(number, min(depth, num_frames))
