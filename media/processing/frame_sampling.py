"""Sampling of video frames, as model families do it. Pure arithmetic, independent of files and pixels.

The formulas are those of `sample_frames` in the video processors of transformers. Where the reference has no result (a
video of one frame, or more frames requested than there are), the nearest possible number is used.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import msgspec
import numpy as np

MIN_FRAMES = 4
MAX_FRAMES = 768


def from_end_to_end(num_frames: int, wanted: int, *, max_frames: int) -> list[int]:
    """Returns the indices of `wanted` of `num_frames` frames, or of as many as there may be, the first and last too."""
    return _between(0, num_frames - 1, min(wanted, num_frames, max_frames))


def from_segments(num_frames: int, wanted: int, *, max_frames: int) -> list[int]:
    """Returns the indices of so many frames, each in the middle of one of equally long segments."""
    return middles(num_frames, max(1, min(wanted, num_frames, max_frames)))


class PatchSampling(msgspec.Struct, frozen=True, kw_only=True, tag="patches"):
    """Qwen2-VL's: evenly spaced frames from the first on, as many as fill temporal patches.

    Sampling at a rate gives at least 4 frames, at most 768, and no more than the video has.
    """

    depth: int = 2
    """Frames per patch."""
    fps: float = 1.0
    """Default rate in frames per second."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        count = num_frames_at_rate(num_frames, duration_seconds, fps=fps, max_frames=max_frames, depth=self.depth)
        return evenly_spaced(num_frames, count)

    def requested(self, num_frames: int, wanted: int, *, max_frames: int) -> list[int]:
        """Returns the indices of about `wanted` of `num_frames` frames."""
        count = num_frames_requested(num_frames, wanted, max_frames=max_frames, depth=self.depth)
        return evenly_spaced(num_frames, count)


class EndpointSampling(msgspec.Struct, frozen=True, kw_only=True, tag="endpoints"):
    """Qwen3-VL's: evenly spaced frames that include the first and the last one."""

    fps: float = 2.0
    """Default rate in frames per second."""
    min_frames: int = MIN_FRAMES
    """Fewest frames that are sampled at a rate, if the video has them."""
    max_frames: int = MAX_FRAMES
    """Most frames that are sampled."""
    max_frames_at_rate: int = MAX_FRAMES
    """Most frames that are sampled at a rate. Requests may ask for more by their number."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        wanted = max(duration_seconds * Fraction(fps), self.min_frames)
        most = min(num_frames, self.max_frames_at_rate)
        return self.requested(num_frames, int(min(wanted, most)), max_frames=max_frames)

    def requested(self, num_frames: int, wanted: int, *, max_frames: int) -> list[int]:
        """Returns the indices of `wanted` of `num_frames` frames, or of as many as there may be."""
        count = min(wanted, num_frames, max_frames, self.max_frames)
        return np.linspace(0, num_frames - 1, count).round().astype(int).tolist()


class IntervalSampling(msgspec.Struct, frozen=True, kw_only=True, tag="interval"):
    """SmolVLM2's: evenly spaced frames between two instants, the beginning and the end of short videos."""

    fps: float = 1.0
    """Default rate in frames per second."""
    max_frames: int = 64
    """Most frames that are sampled at a rate."""
    skip_seconds: int = 1
    """Left out at the beginning and the end of a video that is too long to be sampled at its rate."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        most = min(max_frames, self.max_frames)
        first, last = 0, num_frames - 1
        if duration_seconds - 2 * self.skip_seconds > most * Fraction(fps):
            skipped = self.skip_seconds * num_frames / duration_seconds  # frames
            inside = int(skipped), min(int(num_frames - skipped), last)
            first, last = inside if inside[0] < inside[1] else (first, last)
        return _between(first, last, round(min(fps * float(duration_seconds), most)))

    requested = staticmethod(from_end_to_end)


class SegmentSampling(msgspec.Struct, frozen=True, kw_only=True, tag="segments"):
    """InternVL's: the middle frame of each of equally long segments."""

    fps: float = 1.0
    """Default rate in frames per second."""
    max_frames_at_rate: int = 32
    """Most frames that are sampled at a rate. Requests may ask for more by their number."""
    rounds_up: bool = False
    """The number of frames at a rate is rounded to the nearest integer, not down."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        wanted = min(duration_seconds * Fraction(fps), Fraction(self.max_frames_at_rate))
        return self.requested(num_frames, round(wanted) if self.rounds_up else int(wanted), max_frames=max_frames)

    requested = staticmethod(from_segments)


class StrideSampling(msgspec.Struct, frozen=True, kw_only=True, tag="stride"):
    """MiniCPM-V's: every so many frames from the first on; of too many, the middle one of each of equal segments."""

    fps: float = 1.0
    """Default rate in frames per second."""
    max_frames_at_rate: int = 64
    """Most frames that are sampled at a rate. Requests may ask for more by their number."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        stride = max(1, round(num_frames / (duration_seconds * Fraction(fps))))
        indices = range(0, num_frames, stride)
        most = min(max_frames, self.max_frames_at_rate)
        return [indices[index] for index in middles(len(indices), min(len(indices), most))]

    requested = staticmethod(from_segments)


class InstantSampling(msgspec.Struct, frozen=True, kw_only=True, tag="instants"):
    """MiniCPM-V 4.6's: the frame at each of equally distant instants; of too many, evenly spaced tenths of a second."""

    fps: float = 1.0
    """Default rate in frames per second."""
    max_frames_at_rate: int = 128
    """Most frames that are sampled at a rate. Requests may ask for more by their number."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        own_fps, seconds = float(num_frames / duration_seconds), float(duration_seconds)  # in floats like the reference
        most = min(max_frames, self.max_frames_at_rate)
        if seconds * fps <= most:
            instants = [index / fps for index in range(math.ceil(seconds * fps))]
        else:
            step = min(0.1, 1 / fps)
            tenths = [round(index * step, 3) for index in range(int(seconds / step))]
            instants = [tenths[place] for place in np.linspace(0, len(tenths) - 1, min(most, len(tenths)), dtype=int)]
        return [min(int(instant * own_fps), num_frames - 1) for instant in instants]

    requested = staticmethod(from_end_to_end)


class ClockSampling(msgspec.Struct, frozen=True, kw_only=True, tag="clock"):
    """GLM-4.1V's: the first frame from each of equally distant instants on; of long videos, a number of frames."""

    fps: float = 2.0
    """Default rate in frames per second."""
    max_seconds: int = 300
    """A longer video has as many frames as one of this duration."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        # In floats like the reference, where a product may round to just above an integer.
        own_fps, seconds = float(num_frames / duration_seconds), float(duration_seconds)
        if seconds <= self.max_seconds:
            instants = (index * own_fps / fps for index in range(max(int(seconds * fps), 1)))
        elif (wanted := int(self.max_seconds * fps)) < num_frames:
            instants = (instant * own_fps for instant in np.linspace(0, seconds, wanted))
        else:
            instants = iter(range(num_frames))
        indices = sorted({min(math.ceil(instant), num_frames - 1) for instant in instants})
        return _in_pairs([indices[place] for place in _between(0, len(indices) - 1, max_frames)])

    requested = staticmethod(from_end_to_end)


class DurationSampling(msgspec.Struct, frozen=True, kw_only=True, tag="duration"):
    """GLM-4.6V's: the longer a video, the fewer frames of each second."""

    fps: float = 0.0
    """Default rate in frames per second; 0: 6 for up to 30 s, 2 for up to 300 s, and 1 for longer videos."""
    max_seconds: int = 2400
    """A longer video has as many frames as one of this duration."""
    max_frames_at_rate: int = 640
    """Most frames that are sampled at a rate. Requests may ask for more by their number."""

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        seconds, last = float(duration_seconds), num_frames - 1
        fps = fps or next((rate for most, rate in ((30, 6.0), (300, 2.0)) if seconds <= most), 1.0)
        wanted = max(min(int(min(seconds, self.max_seconds) * fps), self.max_frames_at_rate, max_frames), 1)
        own_seconds = 1 / float(num_frames / duration_seconds)
        indices = [] if num_frames < wanted else self._by_instants(num_frames, own_seconds, fps, end=int(seconds))
        if not indices or len(indices) > wanted:
            indices = _between(0, last, wanted)
        elif len(indices) < wanted:
            indices = _between(indices[0], indices[-1], wanted)
        return _in_pairs(indices)

    requested = staticmethod(from_end_to_end)

    @staticmethod
    def _by_instants(num_frames: int, own_seconds: float, fps: float, *, end: int) -> list[int]:
        """Returns the indices of the first frame from each instant on, up to the second `end`."""
        indices, instant = list[int](), 0.0
        for index in range(num_frames):
            if index * own_seconds >= instant:
                indices.append(index)
                instant += 1 / fps  # in floats and summed up, like the reference
                if instant >= end:
                    break
        return indices


class CountSampling(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """Gemma 4's: a number of frames of any video, evenly spaced from the first one on."""

    fps: float = 0.0
    """Default rate in frames per second; 0: `num_frames` frames, or all of a video that has fewer."""
    num_frames: int = 32

    def at_rate(self, num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int) -> list[int]:
        """Returns the indices of frames sampled at a rate; the arguments are those of `num_frames_at_rate`."""
        own_fps = float(num_frames / duration_seconds)  # in floats like the reference
        wanted = int(num_frames / own_fps * fps) if fps else self.num_frames
        return self.requested(num_frames, max(wanted, 1), max_frames=max_frames)

    def requested(self, num_frames: int, wanted: int, *, max_frames: int) -> list[int]:
        """Returns the indices of `wanted` of `num_frames` frames, or of as many as there may be."""
        return evenly_spaced(num_frames, min(wanted, num_frames, max_frames))


FrameSampling: TypeAlias = (
    PatchSampling
    | EndpointSampling
    | IntervalSampling
    | SegmentSampling
    | StrideSampling
    | InstantSampling
    | ClockSampling
    | DurationSampling
    | CountSampling
)
"""How a model family samples frames. It travels to the decoding workers and is part of the keys of cached media."""


def num_frames_at_rate(
    num_frames: int, duration_seconds: Fraction, *, fps: float, max_frames: int = MAX_FRAMES, depth: int
) -> int:
    """Returns how many frames to sample at a rate.

    Args:
        num_frames: Frames of the video, at least 1.
        duration_seconds: Duration of the video, including its last frame's.
        fps: Frames to sample per second.
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


def middles(num_frames: int, num_segments: int) -> list[int]:
    """Returns the index of the middle frame of each of equally long segments."""
    return [(2 * index + 1) * num_frames // (2 * num_segments) for index in range(num_segments)]


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


def _between(first: int, last: int, count: int) -> list[int]:
    """Returns at most `count` different indices, evenly spaced, and at least one."""
    return np.unique(np.linspace(first, last, max(count, 1), dtype=int)).tolist()


def _in_pairs(indices: list[int]) -> list[int]:
    """Returns the indices, the last one twice if their number is odd."""
    return [*indices, indices[-1]] if len(indices) % 2 else indices


def _at_least_one_patch(number: int, num_frames: int, depth: int) -> int:
    return max(number, min(depth, num_frames))
