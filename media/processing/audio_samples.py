"""Samples of any rate and number of channels, as the samples that a model's features are computed from."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio import Audio, AudioProcessing, FloatArray, audio_from_samples
from glimpse.media.processing.resample import resample

RATES = range(4_000, 192_001)
"""Supported sampling rates in Hz. Lower rates would allow long audio in a few bytes."""


def audio_from_array(array: npt.NDArray[Any], rate: int, processing: AudioProcessing) -> Audio:
    """Preprocesses an array of samples.

    Args:
        array: Floats [samples] or [channels, samples], full scale at 1. Channels are averaged.
        rate: In Hz.

    Raises:
        MediaError: The rate is not supported, or the samples are invalid.
    """
    per_channel = np.atleast_2d(array)[:, : _max_source_samples(rate, processing)].astype(np.float32)
    return audio_from_samples(resample_for_model([per_channel.mean(axis=0)], rate, processing), processing)


def resample_for_model(chunks: Iterable[FloatArray], rate: int, processing: AudioProcessing) -> FloatArray:
    """Resamples and truncates audio: returns [samples] at the checkpoint's rate, at most `max_samples`.

    Requests no more chunks than the result needs.

    Raises:
        MediaError: The rate is not supported; or from `chunks`.
    """
    if rate not in RATES:
        message = f"expected a sampling rate from {RATES[0]} to {RATES[-1]} Hz, got {rate}"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    return resample(chunks, rate, to=processing.sampling_rate, max_samples=processing.max_samples)


def _max_source_samples(rate: int, processing: AudioProcessing) -> int:
    """Returns how many samples at this rate can affect the result, including the filter's look-ahead."""
    return (processing.max_samples // processing.sampling_rate + 1) * rate
