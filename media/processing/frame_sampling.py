"""Which frames of a clip the model sees. Pure arithmetic; knows neither files nor pixels.

The numbers and the places are Qwen2-VL's (`sample_frames` in the reference implementation's video processor): at a
rate, never fewer than 4 frames and never more than 768 or than there are; always as many as fill whole patches in time;
spread evenly from the first frame on. Where the reference has no answer (a clip of one frame, more frames asked for
than there are), the nearest number is taken for which there is one.
"""

from collections.abc import Sequence
from fractions import Fraction

DEFAULT_FPS = 1.0
MIN_FRAMES = 4
MAX_FRAMES = 768


def num_frames_at_rate(
    num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int = MAX_FRAMES, depth: int
) -> int:
    """How many frames of a clip are taken at a rate.

    Args:
        num_frames: of the clip, at least 1.
        duration_seconds: of the clip, that of its last frame included.
        fps: frames taken per second.
        max_frames: the most taken.
        depth: frames of a patch in time.
    """
    most = min(max_frames, num_frames) // depth * depth
    wanted = min(max(duration_seconds * Fraction(fps), MIN_FRAMES), most)
    return _at_least_one_patch(int(wanted) // depth * depth, num_frames, depth)


def num_frames_requested(num_frames: int, wanted: int, *, max_frames: int = MAX_FRAMES, depth: int) -> int:
    """How many frames of a clip are taken where the caller says how many; the other arguments are as above."""
    most = min(max_frames, num_frames) // depth * depth
    return _at_least_one_patch(min(round(wanted / depth) * depth, most), num_frames, depth)


def evenly_spaced(num_frames: int, num_sampled: int) -> list[int]:
    """Indices of `num_sampled` of `num_frames` frames, evenly spaced, the first among them."""
    return [index * num_frames // num_sampled for index in range(num_sampled)]


def num_decoded(times: Sequence[int], keyframes: Sequence[int], frame_indices: Sequence[int]) -> int:
    """How many frames are decoded in order to get at some of them, skipping to a keyframe wherever that is shorter.

    Args:
        times: of all frames, ascending.
        keyframes: times of those that can be decoded without others, ascending.
        taken: indices into `times`, ascending.
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
