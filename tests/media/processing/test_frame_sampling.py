"""Frame sampling: equal to the reference's formula, and defined where that fails."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.processing.frame_sampling import evenly_spaced, num_decoded, num_frames_at_rate, num_frames_requested

RATES = [Fraction(1), Fraction(5), Fraction(10), Fraction(12), Fraction(24), Fraction(25), Fraction(30000, 1001)]


def reference_number(num_frames: int, rate: float, fps: float, max_frames: int) -> int:
    """Computes the number as transformers' video processor of Qwen2-VL does, in floats. (It requires torchvision.)"""
    most = math.floor(min(max_frames, num_frames) / 2) * 2
    number = min(max(num_frames / rate * fps, 4), most, num_frames)
    return math.floor(number / 2) * 2


@given(
    num_frames=st.integers(2, 5000),
    rate=st.sampled_from(RATES),
    fps=st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 60.0]),
    max_frames=st.integers(2, 768),
)
def test_num_frames_at_rate_matches_the_reference(num_frames: int, rate: Fraction, fps: float, max_frames: int) -> None:
    number = num_frames_at_rate(num_frames, num_frames / rate, fps=fps, max_frames=max_frames, depth=2)
    assert abs(number - reference_number(num_frames, float(rate), fps, max_frames)) in (
        # The reference's floats may round a product to just below an integer; ours is exact.
        (0, 2) if (num_frames / rate * Fraction(fps)).denominator == 1 else (0,)
    )


@pytest.mark.parametrize(
    ("num_frames", "seconds", "fps", "max_frames", "expected"),
    [
        (20, 2, 1, 768, 4),  # never fewer than 4
        (20, 2, 5, 768, 10),
        (70, 7, 1, 768, 6),  # an odd number does not fill temporal patches
        (20, 2, 100, 768, 20),  # at most all frames
        (21, 2, 100, 768, 20),
        (3000, 1000, 1, 768, 768),
        (3000, 1000, 1, 101, 100),
        (3, 3, 1, 768, 2),
        (2, 2, 1, 768, 2),
        (1, 1, 1, 768, 1),  # the reference divides by zero
        (20, 2, 1, 1, 2),  # here too
    ],
)
def test_num_frames_at_rate(num_frames: int, seconds: int, fps: float, max_frames: int, expected: int) -> None:
    assert num_frames_at_rate(num_frames, Fraction(seconds), fps=fps, max_frames=max_frames, depth=2) == expected


@pytest.mark.parametrize(
    ("num_frames", "requested", "max_frames", "expected"),
    [(20, 8, 768, 8), (20, 7, 768, 8), (20, 5, 768, 4), (20, 1, 768, 2), (20, 50, 768, 20), (5, 50, 768, 4),
     (1, 6, 768, 1), (20, 8, 6, 6)],
)  # fmt: skip
def test_num_frames_requested(num_frames: int, requested: int, max_frames: int, expected: int) -> None:
    assert num_frames_requested(num_frames, requested, max_frames=max_frames, depth=2) == expected


@given(num_frames=st.integers(1, 3000), data=st.data())
def test_frame_spacing_matches_the_reference(num_frames: int, data: st.DataObject) -> None:
    num_sampled = data.draw(st.integers(1, num_frames))
    reference = torch.arange(0, num_frames, num_frames / num_sampled).int().tolist()
    # Rounding of floats sometimes gives the reference one more index, beyond the last frame.
    assert evenly_spaced(num_frames, num_sampled) == reference[:num_sampled]


@pytest.mark.parametrize(
    ("keyframes", "frame_indices", "decoded"),
    [
        ([0], [0], 1),
        ([0], [9], 10),
        ([0], [3, 9], 10),
        ([0], [3, 3], 4),
        ([0, 5], [9], 5),
        ([0, 5], [3, 9], 4 + 5),
        ([0, 5], [6, 9], 2 + 3),
        ([0, 2, 4, 6, 8], [1, 8], 2 + 1),
    ],
)
def test_num_decoded_counts_from_keyframes(keyframes: list[int], frame_indices: list[int], decoded: int) -> None:
    assert num_decoded(range(0, 100, 10), [10 * index for index in keyframes], frame_indices) == decoded
