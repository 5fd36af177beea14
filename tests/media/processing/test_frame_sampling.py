"""Frame sampling: equal to the reference's formula, and defined where that fails."""

import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import video_utils

from glimpse.media.processing.frame_sampling import (
    ClockSampling,
    CountSampling,
    DurationSampling,
    EndpointSampling,
    InstantSampling,
    IntervalSampling,
    SegmentSampling,
    StrideSampling,
    evenly_spaced,
    num_decoded,
    num_frames_at_rate,
    num_frames_requested,
)


def video_processing(family: str) -> Any:
    """Returns a module by its full name: `transformers` has placeholders for it where torchvision is missing."""
    return import_module(f"transformers.models.{family}.video_processing_{family}")


Glm4vVideoProcessor = video_processing("glm4v").Glm4vVideoProcessor
Qwen3VLVideoProcessor = video_processing("qwen3_vl").Qwen3VLVideoProcessor
SmolVLMVideoProcessor = video_processing("smolvlm").SmolVLMVideoProcessor
VideoMetadata = video_utils.VideoMetadata
default_sample_indices_fn = video_utils.default_sample_indices_fn

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


@given(
    num_frames=st.integers(1, 5000),
    rate=st.sampled_from([1.0, 5.0, 12.0, 24.0, 25.0, 30.0]),
    fps=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    max_frames=st.integers(2, 768),
)
def test_sampling_with_endpoints_matches_qwen3_vl(num_frames: int, rate: float, fps: float, max_frames: int) -> None:
    reference: Any = SimpleNamespace(fps=2, min_frames=4, max_frames=max_frames)
    metadata: Any = SimpleNamespace(total_num_frames=num_frames, fps=rate)
    seconds = num_frames / Fraction(rate)
    expected = Qwen3VLVideoProcessor.sample_frames(reference, metadata, fps=fps).tolist()
    sampling = EndpointSampling(max_frames=max_frames)
    found = sampling.at_rate(num_frames, seconds, fps=fps, max_frames=768)
    # The reference's floats may round a product to just below an integer; ours is exact.
    assert found == expected or (len(found) == len(expected) + 1 and (seconds * Fraction(fps)).denominator == 1)
    wanted = min(max_frames, num_frames)
    expected = Qwen3VLVideoProcessor.sample_frames(reference, metadata, num_frames=wanted).tolist()
    assert EndpointSampling().requested(num_frames, max_frames, max_frames=768) == expected


@given(
    num_frames=st.integers(1, 200_000),
    rate=st.sampled_from([1.0, 12.5, 24.0, 25.0, 30.0, 60.0]),
    fps=st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.3]),
    max_frames=st.integers(1, 768),
)
def test_sampling_of_an_interval_matches_smolvlm2(num_frames: int, rate: float, fps: float, max_frames: int) -> None:
    seconds = num_frames / Fraction(rate)
    metadata = VideoMetadata(total_num_frames=num_frames, fps=rate, duration=float(seconds))
    reference: Any = None  # all parameters are given
    expected = SmolVLMVideoProcessor.sample_frames(reference, metadata, num_frames=max_frames, fps=fps).tolist()
    sampling = IntervalSampling(max_frames=max_frames)
    assert sampling.at_rate(num_frames, seconds, fps=fps, max_frames=768) == expected
    assert IntervalSampling(max_frames=768).at_rate(num_frames, seconds, fps=fps, max_frames=max_frames) == expected


@given(
    num_frames=st.integers(1, 20_000),
    rate=st.sampled_from([1.0, 12.5, 24.0, 25.0, 30000 / 1001, 60.0]),
    fps=st.sampled_from([0.01, 0.5, 1.0, 2.0, 2.5]),
)
def test_sampling_by_the_clock_matches_glm_4_1v(num_frames: int, rate: float, fps: float) -> None:
    seconds = num_frames / Fraction(rate)
    metadata = VideoMetadata(total_num_frames=num_frames, fps=rate, duration=float(seconds))
    reference: Any = SimpleNamespace(max_duration=300)
    expected = Glm4vVideoProcessor.sample_frames(reference, metadata, fps=fps).tolist()
    assert ClockSampling().at_rate(num_frames, seconds, fps=fps, max_frames=768) == expected


@pytest.fixture(scope="module")
def sample_frames() -> Iterator[Callable[..., Any]]:
    """The `sample_frames` of a reference's class, whose module imports torchvision and does not call it here."""
    with pytest.MonkeyPatch.context() as patch:
        names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
        for name in names:
            patch.setitem(sys.modules, name, ModuleType(name))
        setattr(sys.modules[names[-1]], "functional", SimpleNamespace(InterpolationMode=None))  # noqa: B010 - no type

        def of(name: str) -> Any:
            module = import_module(f"transformers.models.{name.lower()}.video_processing_{name.lower()}")
            return getattr(module, f"{name}VideoProcessor").sample_frames

        yield of


@given(
    num_frames=st.integers(1, 200_000),
    rate=st.sampled_from([1.0, 5.0, 12.5, 24.0, 25.0, 30000 / 1001, 60.0]),
)
def test_sampling_by_duration_matches_glm_4_6v(sample_frames: Callable[..., Any], num_frames: int, rate: float) -> None:
    seconds = num_frames / Fraction(rate)
    metadata = VideoMetadata(total_num_frames=num_frames, fps=rate, duration=float(seconds))
    expected = sample_frames("Glm46V")(SimpleNamespace(temporal_patch_size=2), metadata).tolist()
    found = DurationSampling().at_rate(num_frames, seconds, fps=0.0, max_frames=768)
    assert found == (expected or [0, 0])  # of a video shorter than an interval, the reference samples nothing


@settings(max_examples=25)
@given(
    num_frames=st.integers(1, 20_000),
    rate=st.sampled_from([0.5, 1.0, 5.0, 12.5, 24.0, 25.0, 30000 / 1001, 60.0]),
    max_frames=st.integers(1, 200),
)
def test_sampling_at_instants_matches_minicpm_v_4_6(
    sample_frames: Callable[..., Any], num_frames: int, rate: float, max_frames: int
) -> None:
    seconds = num_frames / Fraction(rate)
    metadata = VideoMetadata(total_num_frames=num_frames, fps=rate, duration=float(seconds))
    reference: Any = SimpleNamespace(max_num_frames=max_frames, stack_frames=1)
    expected = sample_frames("MiniCPMV4_6")(reference, metadata)
    assert (
        InstantSampling(max_frames_at_rate=max_frames).at_rate(num_frames, seconds, fps=1, max_frames=768) == expected
    )


def test_sampling_at_instants_follows_requests() -> None:
    sampling = InstantSampling()
    assert sampling.at_rate(40, Fraction(4), fps=2, max_frames=768) == [0, 5, 10, 15, 20, 25, 30, 35]
    assert sampling.at_rate(40, Fraction(4), fps=60, max_frames=4) == [0, 13, 26, 39]
    assert sampling.requested(40, 3, max_frames=768) == [0, 19, 39]


@given(
    num_frames=st.integers(1, 20_000),
    rate=st.sampled_from([0.5, 1.0, 12.5, 25.0, 30000 / 1001]),
    fps=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_a_number_of_frames_matches_gemma_4(num_frames: int, rate: float, fps: float) -> None:
    metadata = VideoMetadata(total_num_frames=num_frames, fps=rate)
    found = CountSampling().at_rate(num_frames, num_frames / Fraction(rate), fps=fps, max_frames=768)
    wanted = max(1, int(num_frames / rate * fps)) if fps else 32
    if wanted > min(num_frames, 768):  # where the reference has none, or more than are served
        assert found == [index * num_frames // len(found) for index in range(min(num_frames, 768))]
    else:
        chosen = {"fps": fps} if fps else {"num_frames": 32}
        assert found == default_sample_indices_fn(metadata, **chosen).tolist()


@pytest.mark.parametrize("sampling", [ClockSampling(), DurationSampling()])
def test_glms_sampling_follows_requests(sampling: ClockSampling | DurationSampling) -> None:
    assert sampling.at_rate(40, Fraction(4), fps=1, max_frames=768) == [0, 10, 20, 30]
    assert sampling.at_rate(40, Fraction(4), fps=5, max_frames=4)[-1] <= 39
    assert len(sampling.at_rate(40, Fraction(4), fps=5, max_frames=4)) == 4
    assert sampling.requested(40, 3, max_frames=768) == [0, 19, 39]


@given(num_frames=st.integers(1, 1000), wanted=st.integers(1, 768), max_frames=st.integers(1, 768))
def test_as_many_frames_of_an_interval_as_requested(num_frames: int, wanted: int, max_frames: int) -> None:
    found = IntervalSampling().requested(num_frames, wanted, max_frames=max_frames)
    assert len(found) == len(set(found)) == min(num_frames, wanted, max_frames)
    assert found[0] == 0
    assert found[-1] == num_frames - 1 or len(found) == 1


@given(num_frames=st.integers(1, 5000), wanted=st.integers(1, 768))
def test_middles_of_segments_match_internvl(num_frames: int, wanted: int) -> None:
    """In floats, as transformers' video processor. (It requires torchvision.)"""
    segment = num_frames / min(num_frames, wanted)
    expected = torch.arange(segment / 2, num_frames, segment).int().tolist()
    assert SegmentSampling().requested(num_frames, wanted, max_frames=768) == expected


@pytest.mark.parametrize(
    ("num_frames", "seconds", "fps", "max_frames", "expected"),
    [
        (40, 4, 1, 768, [5, 15, 25, 35]),
        (40, 4, 0.5, 768, [10, 30]),
        (40, 4, 1, 1, [20]),
        (5, Fraction(1, 2), 1, 768, [2]),  # never fewer than one
        (3, 1, 30, 768, [0, 1, 2]),
    ],
)
def test_segments_are_sampled_at_a_rate(
    num_frames: int, seconds: Fraction, fps: float, max_frames: int, expected: list[int]
) -> None:
    assert SegmentSampling().at_rate(num_frames, Fraction(seconds), fps=fps, max_frames=max_frames) == expected


def test_long_videos_have_a_limited_number_of_segments() -> None:
    assert len(SegmentSampling().at_rate(9000, Fraction(300), fps=1, max_frames=768)) == 32
    assert len(SegmentSampling().requested(9000, 100, max_frames=768)) == 100


@given(num_frames=st.integers(1, 5000), rate=st.sampled_from([23.976, 25.0, 29.97, 30.0, 60.0]))
def test_strides_match_the_published_script_of_minicpm_v(num_frames: int, rate: float) -> None:
    expected = list(range(0, num_frames, round(rate / 1)))
    if len(expected) > 64:
        gap = len(expected) / 64
        expected = [expected[int(index * gap + gap / 2)] for index in range(64)]
    seconds = num_frames / Fraction(rate)
    assert StrideSampling().at_rate(num_frames, seconds, fps=1, max_frames=768) == expected


@pytest.mark.parametrize(
    ("fps", "max_frames", "expected"), [(0.5, 768, [0, 20]), (40, 768, list(range(40))), (1, 2, [10, 30])]
)
def test_strides_follow_requests(fps: float, max_frames: int, expected: list[int]) -> None:
    assert StrideSampling().at_rate(40, Fraction(4), fps=fps, max_frames=max_frames) == expected
    assert StrideSampling().requested(40, 2, max_frames=768) == [10, 30]


@given(num_frames=st.integers(1, 5000), rate=st.sampled_from([24.0, 25.0, 30.0, 60.0]))
def test_rounded_segments_match_the_published_script_of_minicpm_v_4_5(num_frames: int, rate: float) -> None:
    duration = num_frames / rate
    count = min(max(round(3 * duration), 1), 240, num_frames)
    gap = num_frames / count
    expected = [int(index * gap + gap / 2) for index in range(count)]
    sampling = SegmentSampling(fps=3, max_frames_at_rate=240, rounds_up=True)
    found = sampling.at_rate(num_frames, num_frames / Fraction(rate), fps=3, max_frames=768)
    # The script's floats may round a product to just below an integer; ours is exact.
    assert len(found) == len(expected)
    assert all(ours - theirs in (0, 1) for ours, theirs in zip(found, expected, strict=True))
