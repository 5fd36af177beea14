"""Audio processing: features and tokens match the reference for any length, sampling rate and channels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio import (
    AudioProcessing,
    audio_from_samples,
    audio_processing,
)
from glimpse.media.processing.audio_samples import audio_from_array, resample_for_model
from glimpse.media.processing.mel import mel_filters
from tests.media.audio import PROCESSING, noise, tone

LENGTHS = [321, 480, 1_000, 16_000, 16_161, 47_999, 479_520, 479_681, 480_000, 700_000]
"""Samples: the shortest audio with a token, odd and even numbers of frames, the maximum duration and beyond."""


@pytest.fixture(scope="module")
def extractor() -> Any:
    return WhisperFeatureExtractor(feature_size=128)


@pytest.mark.parametrize("num_samples", LENGTHS)
def test_features_and_tokens_match_the_reference(extractor: Any, num_samples: int) -> None:
    samples = noise(num_samples, num_samples)
    expected = extractor(samples, sampling_rate=16_000, return_attention_mask=True, return_tensors="np")
    num_frames = int(expected.attention_mask.sum())
    loaded_audio = audio_from_samples(samples[: PROCESSING.max_samples], PROCESSING)
    num_columns = min(2 * -(-num_frames // 2) + 1, 3000)
    assert loaded_audio.features.shape == (128, num_columns)
    assert loaded_audio.features.dtype == np.float32
    assert np.abs(loaded_audio.features - expected.input_features[0, :, :num_columns]).max() < 2e-4
    assert loaded_audio.grid[2] // 4 == ((num_frames - 1) // 2 + 1 - 2) // 2 + 1  # as in the reference's processor
    assert loaded_audio.duration_seconds == min(num_samples, 480_000) / 16_000


def test_quiet_parts_are_clamped_relative_to_the_maximum(extractor: Any) -> None:
    samples = np.concatenate([tone(440, 16_000, 0.5), 1e-5 * tone(900, 16_000, 0.5)])
    expected = extractor(samples, sampling_rate=16_000, return_tensors="np").input_features[0]
    features = audio_from_samples(samples, PROCESSING).features
    assert np.abs(features - expected[:, : features.shape[1]]).max() < 2e-4
    assert features.max() - features.min() == pytest.approx(2)


def test_accepts_silence() -> None:
    loaded_audio = audio_from_samples(np.zeros(16_000, np.float32), PROCESSING)
    assert np.allclose(loaded_audio.features, -1.5, atol=1e-6)
    assert loaded_audio.grid[2] // 4 == 25


@pytest.mark.parametrize("num_bins", [80, 128])
def test_mel_filters_match_the_reference(num_bins: int) -> None:
    expected = WhisperFeatureExtractor(feature_size=num_bins).mel_filters.T
    assert np.abs(mel_filters(num_bins, 400, 16_000) - expected).max() < 1e-7


def test_truncates_audio_to_thirty_seconds() -> None:
    long, cut = noise(1, 600_000), noise(1, 600_000)[:480_000]
    whole, part = (audio_from_array(samples, 16_000, PROCESSING) for samples in (long, cut))
    assert whole.key == part.key
    assert (whole.grid[2] // 4, whole.duration_seconds) == (750, 30)


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 192_000])
def test_resampling_preserves_a_tone(rate: int) -> None:
    samples = resample_for_model([tone(440, rate, 2.01)], rate, PROCESSING)
    expected = tone(440, 16_000, len(samples) / 16_000)
    assert len(samples) == -(-round(2.01 * rate) * 16_000 // rate)
    # Only the middle is compared closely: at the ends the filter extends beyond the signal.
    assert np.abs(samples - expected)[200:-200].max() < 1e-4
    assert np.abs(samples - expected).max() < 0.15


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
def test_resampling_does_not_alias(rate: int) -> None:
    assert np.abs(resample_for_model([tone(9_500, rate, 1)], rate, PROCESSING)[200:-200]).max() < 1e-3


@given(cuts=st.lists(st.integers(1, 9_000), max_size=6), rate=st.sampled_from([8_000, 16_000, 44_100]))
@settings(max_examples=15)
def test_resampling_does_not_depend_on_chunk_boundaries(cuts: list[int], rate: int) -> None:
    samples = noise(3, 20_000)
    pieces = np.split(samples, np.minimum(np.cumsum(cuts), len(samples)))
    assert np.array_equal(resample_for_model(pieces, rate, PROCESSING), resample_for_model([samples], rate, PROCESSING))


def test_reads_no_more_chunks_than_needed() -> None:
    chunks: list[int] = []

    def endless() -> Any:
        while True:
            chunks.append(1)
            yield np.zeros(48_000, np.float32)

    assert len(resample_for_model(endless(), 48_000, PROCESSING)) == 480_000
    assert len(chunks) <= 31


def test_channels_are_averaged() -> None:
    left, right = noise(1, 20_000), noise(2, 20_000)
    both = audio_from_array(np.stack([left, right]), 44_100, PROCESSING)
    assert both.key == audio_from_array((left + right) / 2, 44_100, PROCESSING).key
    assert both.key != audio_from_array(left, 44_100, PROCESSING).key


def test_keys_depend_on_samples_and_processing() -> None:
    samples = noise(1, 5_000)
    other = samples.copy()
    other[-1] += 1e-4
    other_processing = AudioProcessing(
        sampling_rate=16_000, num_mel_bins=80, fft_size=400, hop=160, max_samples=480_000
    )
    keys = [
        audio_from_samples(samples, PROCESSING).key,
        audio_from_samples(other, PROCESSING).key,
        audio_from_samples(np.append(samples, np.float32(0)), PROCESSING).key,
        audio_from_samples(samples, other_processing).key,
    ]
    assert len(set(keys)) == 4
    assert audio_from_samples(samples.copy(), PROCESSING).key == keys[0]


BAD: list[Any] = [
    pytest.param(np.zeros(0, np.float32), 16_000, "expected audio of more than 0.02 s", id="empty"),
    pytest.param(np.zeros(320, np.float32), 16_000, "expected audio of more than 0.02 s", id="two frames"),
    pytest.param(np.full(9_000, np.nan), 16_000, "expected finite audio samples", id="NaN"),
    pytest.param(np.full(9_000, 1e30), 16_000, "magnitude up to 1e\\+06", id="huge"),
    pytest.param(np.zeros(9_000), 1, "sampling rate", id="slow"),
    pytest.param(np.zeros(9_000), 10**9, "sampling rate", id="fast"),
]


@pytest.mark.parametrize(("array", "rate", "words"), BAD)
def test_refuses_invalid_audio(array: Any, rate: int, words: str) -> None:
    with pytest.raises(MediaError, match=words) as caught:
        audio_from_array(array, rate, PROCESSING)
    assert caught.value.code is MediaErrorCode.INVALID_MEDIA


def test_reads_the_audio_processing_of_a_checkpoint(tmp_path: Path) -> None:
    # From the published Qwen2-Audio checkpoint.
    published = {
        "chunk_length": 30,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 480000,
        "nb_max_frames": 3000,
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 16000,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(published))
    assert audio_processing(tmp_path) == PROCESSING


@pytest.mark.parametrize("wrong", [{"sampling_rate": 8000}, {"dither": 0.1}, {"feature_extractor_type": "Other"}])
def test_refuses_unsupported_feature_extractors(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        audio_processing(tmp_path)
